package dev.refrain

import java.io.File
import kotlin.concurrent.thread
import kotlin.test.assertEquals
import kotlin.test.assertTrue
import kotlinx.coroutines.runBlocking
import org.junit.jupiter.api.Test

/** Eight threads that generate. `REFRAIN_LEAK_ROUNDS=10000` is the long form: generations of each thread. */
class LeakTest {
    private val rounds = System.getenv("REFRAIN_LEAK_ROUNDS")?.toInt() ?: 150

    @Test
    fun `eight threads leave no memory behind`() {
        engine().use { engine ->
            generate(engine, maxOf(20, rounds / 10))
            val before = residentBytes()
            generate(engine, rounds)
            val after = residentBytes()
            println("8 threads × $rounds generations: resident memory from ${before shr 10} to ${after shr 10} KiB")
            // (Arenas of the allocator and compiled code settle late. A leak of 1 KB for each generation is above it in the long form.)
            assertTrue(after - before < 48L shl 20, "$before to $after bytes")
        }
    }

    private fun generate(engine: Engine, rounds: Int) {
        val texts = java.util.concurrent.ConcurrentHashMap.newKeySet<String>()
        val threads = List(8) { number ->
            thread {
                runBlocking {
                    repeat(rounds) { round ->
                        engine.session(SessionOptions(contextLen = 128u, history = false), null).use { session ->
                            session.append(Role.USER, "Who repairs the tap?")
                            val job = session.generate(short)
                            when ((number + round) % 3) {
                                0 -> job.use { texts += it.await().text }
                                1 -> job.use { running -> texts += running.events().result().text }
                                // Some are cancelled, and some left to the collector of garbage.
                                else -> if (round % 2 == 0) job.cancel()
                            }
                        }
                    }
                }
            }
        }
        threads.forEach { it.join() }
        System.gc()
        Thread.sleep(200)
        assertEquals(1, texts.size, "all answers are the same")
    }

    private fun residentBytes(): Long {
        val file = File("/proc/self/statm")
        if (!file.exists()) return 0
        return file.readText().split(' ')[1].toLong() * 4096
    }
}
