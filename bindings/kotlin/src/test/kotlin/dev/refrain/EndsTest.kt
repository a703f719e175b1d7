package dev.refrain

import java.util.concurrent.TimeUnit
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertTrue
import kotlinx.coroutines.runBlocking
import org.junit.jupiter.api.Test

/** Runs a program, one of [Programs] by default, which must end by itself and say that it is done. */
internal fun ends(name: String, vararg options: String, program: String = "dev.refrain.Programs") {
    val java = "${System.getProperty("java.home")}/bin/java"
    val command =
        listOf(java, "-Drefrain.root=$root", *options, "-cp", System.getProperty("java.class.path"), program, name)
    val process = ProcessBuilder(command).redirectErrorStream(true).start()
    try {
        assertTrue(process.waitFor(60, TimeUnit.SECONDS), "the program runs on")
        // (JNA says so of a listener's thread while the virtual machine ends.)
        val lines = process.inputReader().readLines().filterNot { it.startsWith("JNA: Can't attach native thread") }
        assertEquals(listOf("done"), lines)
        assertEquals(0, process.exitValue())
    } finally {
        process.destroyForcibly()
    }
}

/** A program ends when its `main` returns, whatever it has left open. */
class EndsTest {
    @Test
    fun `a program that closes ends`() = ends("closes")

    @Test
    fun `a program that forgets to close ends`() = ends("forgets")

    @Test
    fun `a program ends while jobs run and a listener listens`() = ends("runs")
}

/** The programs. */
internal object Programs {
    @JvmStatic
    fun main(arguments: Array<String>) {
        when (arguments.single()) {
            "closes" -> engine().use { engine ->
                engine.asked().use { session -> runBlocking { jobFlow { session.generate(short) }.result() } }
            }
            "forgets" -> {
                runBlocking {
                    val session = engine().asked()
                    jobFlow { session.generate(short) }.result()
                    session.generate(short).await()
                }
            }
            "runs" -> {
                val engine = engine()
                engine.asked().generate(long)
                val heard = java.util.concurrent.CountDownLatch(1)
                engine.asked().generate(long).listen(
                    object : EventListener {
                        override fun onEvents(events: List<Event>): Boolean {
                            heard.countDown()
                            return true
                        }
                    },
                )
                heard.await()
            }
            "other" -> {
                val error = assertFailsWith<UnsatisfiedLinkError> { Engine.open(options(), null) }
                assertEquals(otherLibrary().message, error.message)
                assertFailsWith<LinkageError> { libraryVersion() }
            }
        }
        println("done")
    }
}
