package dev.refrain

import com.sun.jna.NativeLibrary
import kotlinx.coroutines.runBlocking

/**
 * What a token costs in Kotlin: `bindings/kotlin/check --bench`.
 *
 * The same output is decoded in turns: by a job whose events nobody takes until it has ended ([Job.wait]), by batches
 * ([Job.nextEvents]), by [jobFlow], and by a listener. The first is the engine's own time in its thread, with the queue of events; the
 * differences are what Kotlin adds. Time of processors is that of all threads of the process: other programs do not change it, and work
 * beside the engine's thread counts.
 */
object Overhead {
    private const val TOKENS = 900
    private const val TURNS = 21
    private val options = GenerateOptions(
        maxTokens = TOKENS.toUInt(),
        jsonSchema = """{"type": "array", "items": {"type": "integer"}, "minItems": 900}""",
    )

    @JvmStatic
    fun main(arguments: Array<String>): Unit = engine().use { engine ->
        val ways = linkedMapOf<String, (Session) -> JobResult>(
            "job alone" to { session -> session.generate(options).use { it.wait() } },
            "batches by nextEvents" to { session ->
                session.generate(options).use { job ->
                    var result: JobResult? = null
                    while (result == null) result = (job.nextEvents(1000u).lastOrNull() as? Event.Done)?.result
                    result
                }
            },
            "flow" to { session -> runBlocking { jobFlow { session.generate(options) }.result() } },
            "listener" to { session ->
                session.generate(options).use { job ->
                    job.listen(
                        object : EventListener {
                            override fun onEvents(events: List<Event>) = true
                        },
                    )
                    job.wait()
                }
            },
        )
        val walls = ways.mapValues { mutableListOf<Double>() }
        val times = ways.mapValues { mutableListOf<Double>() }
        repeat(TURNS) {
            for ((name, take) in ways) {
                engine.session(SessionOptions(contextLen = 1024u, history = false, drafting = Drafting.OFF), null).use { session ->
                    session.appendText("The train leaves at")
                    val (start, started) = System.nanoTime() to processorUs()
                    val tokens = take(session).stats.tokens.toDouble()
                    walls.getValue(name) += (System.nanoTime() - start) / 1e3 / tokens
                    times.getValue(name) += (processorUs() - started) / tokens
                }
            }
        }
        val alone = median(times.getValue("job alone"))
        for ((name, all) in times) {
            val (wall, us) = median(walls.getValue(name)) to median(all)
            println("%-24s%8.2f µs per token, of processors %8.2f µs, %+.2f µs".format(name, wall, us, us - alone))
        }
    }

    /** As `clock` of C, which counts microseconds on every POSIX system. */
    private fun processorUs() = NativeLibrary.getInstance("c").getFunction("clock").invokeLong(emptyArray()).toDouble()

    private fun median(values: List<Double>) = values.sorted()[values.size / 2]
}
