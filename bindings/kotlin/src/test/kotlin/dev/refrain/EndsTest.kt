package dev.refrain

import com.sun.jna.NativeLibrary
import java.nio.file.Files
import java.util.concurrent.TimeUnit
import kotlin.io.path.writeBytes
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertTrue
import kotlinx.coroutines.runBlocking
import org.junit.jupiter.api.Assumptions.assumeTrue
import org.junit.jupiter.api.Test

/** A program ends when its `main` returns, whatever it has left open. */
class EndsTest {
    private fun ends(name: String, vararg options: String) {
        val java = "${System.getProperty("java.home")}/bin/java"
        val command =
            listOf(java, "-Drefrain.root=$root", *options, "-cp", System.getProperty("java.class.path"), "dev.refrain.Programs", name)
        val program = ProcessBuilder(command).redirectErrorStream(true).start()
        try {
            assertTrue(program.waitFor(60, TimeUnit.SECONDS), "the program runs on")
            // (JNA says so of a listener's thread while the virtual machine ends.)
            val lines = program.inputReader().readLines().filterNot { it.startsWith("JNA: Can't attach native thread") }
            assertEquals(listOf("done"), lines)
            assertEquals(0, program.exitValue())
        } finally {
            program.destroyForcibly()
        }
    }

    @Test
    fun `a program that closes ends`() = ends("closes")

    @Test
    fun `a program that forgets to close ends`() = ends("forgets")

    @Test
    fun `a program ends while jobs run and a listener listens`() = ends("runs")

    /** A function of the library has another signature: the number that the library returns for it is changed in its code. */
    @Test
    fun `a library that the classes do not belong to is refused at once`() {
        assertEquals(VERSION, libraryVersion())
        assumeTrue(System.getProperty("os.arch") == "amd64", "the bytes are those of x86-64")
        val file = System.mapLibraryName("refrain_ffi")
        val original = NativeLibrary.getInstance("refrain_ffi")
        val number = original.getFunction("uniffi_refrain_ffi_checksum_func_library_version").invokeInt(emptyArray()) and 0xFFFF
        val bytes = original.file.readBytes()
        // mov ax, number; ret
        val code = byteArrayOf(0x66, 0xB8.toByte(), number.toByte(), (number shr 8).toByte(), 0xC3.toByte())
        val places = (0..bytes.size - code.size).filter { at -> code.indices.all { bytes[at + it] == code[it] } }
        assertTrue(places.isNotEmpty(), "the function's code is another one")
        places.forEach { bytes[it + 2] = (number xor 1).toByte() }
        val folder = Files.createTempDirectory("refrain-other")
        try {
            folder.resolve(file).writeBytes(bytes)
            ends("other", "-Djna.library.path=$folder")
        } finally {
            folder.toFile().deleteRecursively()
        }
    }
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
                val folders = Folders()
                runBlocking {
                    val session = engine().asked()
                    jobFlow { session.generate(short) }.result()
                    session.generate(short).await()
                    val notes = Notes.open(NotesOptions(folder = folders.index))
                    jobFlow { notes.add(listOf(folders.notes.toString())) }.result()
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
