package dev.refrain

import kotlin.concurrent.thread
import kotlin.system.measureTimeMillis
import kotlin.test.assertContentEquals
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertFalse
import kotlin.test.assertNotEquals
import kotlin.test.assertTrue
import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.cancelAndJoin
import kotlinx.coroutines.delay
import kotlinx.coroutines.flow.first
import kotlinx.coroutines.flow.take
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.launch
import kotlinx.coroutines.runBlocking
import kotlinx.coroutines.withTimeoutOrNull
import org.junit.jupiter.api.AfterEach
import org.junit.jupiter.api.Test

/** Jobs, objects and errors. */
class JobsTest {
    private val engine = engine()

    @AfterEach
    fun close() = engine.close()

    @Test
    fun `a flow has progress, text and the result`(): Unit = runBlocking {
        engine.asked().use { session ->
            val events = jobFlow { session.generate(short) }.toList()
            val progress = events.first() as Event.Progress
            assertEquals(Stage.PREFILL, progress.stage)
            assertTrue(progress.done <= progress.total)
            val done = (events.last() as Event.Done).result
            assertEquals(done.text, events.filterIsInstance<Event.Text>().joinToString("") { it.text })
            assertEquals(8uL, done.stats.tokens)
            assertEquals(listOf(Role.USER, Role.ASSISTANT), session.messages().map { it.role })
            // As plain text, and as a result.
            session.append(Role.USER, "And the door?")
            assertTrue(jobFlow { session.generate(short) }.text().toList().joinToString("").isNotEmpty())
            assertEquals(8uL, session.generate(short).await().stats.tokens)
        }
    }

    @Test
    fun `loading tells its progress`(): Unit = runBlocking {
        val seen = mutableListOf<Pair<Long, Long>>()
        Engine.load(options()) { done, total -> seen += done to total }.use { loaded ->
            assertTrue(seen.isNotEmpty() && seen.all { (done, total) -> done in 0..total }, "$seen")
            assertEquals(engine.info(), loaded.info())
        }
        assertEquals(libraryVersion(), "0.2.0")
        val estimate = estimateMemory(options(), SessionOptions())
        assertEquals(estimate.totalBytes, estimate.modelBytes + estimate.sessionBytes)
    }

    @Test
    fun `cancelling the collector cancels the job`(): Unit = runBlocking {
        engine.asked().use { session ->
            val collector = launch(Dispatchers.Default) { jobFlow { session.generate(long) }.collect { } }
            while (session.isFree()) delay(1)
            val ms = measureTimeMillis { collector.cancelAndJoin() }
            assertTrue(ms < 2_000, "cancelling has taken $ms ms")
            // The session is back, with the text so far.
            session.messages()
            // A collector that has enough does the same, and so does a time limit.
            jobFlow { session.generate(long) }.first { it is Event.Text }
            session.info()
            assertEquals(2, jobFlow { session.generate(long) }.take(2).toList().size)
            assertEquals(null, withTimeoutOrNull(20) { jobFlow { session.generate(long) }.result() })
            assertEquals(null, withTimeoutOrNull(20) { session.generate(long).await() })
            assertEquals(8uL, jobFlow { session.generate(short) }.result().stats.tokens)
        }
    }

    private fun Session.isFree() = try {
        info()
        true
    } catch (error: RefrainException) {
        assertEquals(ErrorKind.BUSY, error.kind)
        false
    }

    @Test
    fun `a cancelled job fails with its code`(): Unit = runBlocking {
        engine.asked().use { session ->
            val job = session.generate(long)
            job.cancel()
            job.cancel()
            val error = assertFailsWith<RefrainException> { job.events().collect {} }
            assertEquals(ErrorKind.CANCELLED, error.kind)
            assertEquals(10, error.code)
            assertEquals(ErrorKind.CANCELLED, assertFailsWith<RefrainException> { job.await() }.kind)
            assertTrue(job.isEnded())
            assertContentEquals(emptyList(), job.nextEvents(10_000u), "at once")
        }
    }

    @Test
    fun `a second use is busy`(): Unit = runBlocking {
        engine.asked().use { session ->
            val job = session.generate(long)
            assertKind(ErrorKind.BUSY) { session.info() }
            assertKind(ErrorKind.BUSY) { session.generate(short) }
            val reader = object : EventListener {
                override fun onEvents(events: List<Event>) = true
            }
            job.listen(reader)
            assertKind(ErrorKind.BUSY) { job.nextEvents(0u) }
            assertKind(ErrorKind.BUSY) { job.listen(reader) }
            assertEquals(ErrorKind.BUSY, assertFailsWith<RefrainException> { job.events().collect {} }.kind)
            assertKind(ErrorKind.BUSY) { session.info() }
            job.cancel()
            assertKind(ErrorKind.CANCELLED) { job.wait() }
        }
    }

    @Test
    fun `closed objects refuse, and an engine closes what it has made`(): Unit = runBlocking {
        val engine = engine()
        val session = engine.asked()
        session.close()
        session.close()
        assertKind(ErrorKind.CLOSED) { session.info() }
        assertKind(ErrorKind.CLOSED) { session.append(Role.USER, "Hello") }
        val other = engine.asked()
        val job = other.generate(long)
        val collector = launch(Dispatchers.IO) {
            assertEquals(ErrorKind.CANCELLED, assertFailsWith<RefrainException> { job.events().collect {} }.kind)
        }
        engine.close()
        engine.close()
        collector.join()
        assertKind(ErrorKind.CLOSED) { other.info() }
        assertKind(ErrorKind.CLOSED) { engine.info() }
        assertKind(ErrorKind.CLOSED) { engine.session(SessionOptions(), null) }
        job.close()
        job.close()
        job.cancelQuietly()
        assertKind(ErrorKind.CLOSED) { job.nextEvents(0u) }
        assertEquals(ErrorKind.CLOSED, assertFailsWith<RefrainException> { job.events().collect {} }.kind)
        assertEquals(ErrorKind.CLOSED, assertFailsWith<RefrainException> { job.await() }.kind)
    }

    /** Of a closed job, `cancel` says so or does nothing. */
    private fun Job.cancelQuietly() = try {
        cancel()
    } catch (error: RefrainException) {
        assertEquals(ErrorKind.CLOSED, error.kind)
    }

    @Test
    fun `closing while others use it`(): Unit = runBlocking {
        repeat(20) {
            val session = engine.asked()
            val job = session.generate(long)
            val readers = List(4) {
                thread {
                    try {
                        while (!job.isEnded()) job.nextEvents(1u)
                    } catch (error: RefrainException) {
                        assertTrue(error.kind in setOf(ErrorKind.BUSY, ErrorKind.CLOSED), error.message)
                    }
                }
            }
            delay(2)
            job.close()
            session.close()
            readers.forEach { it.join() }
        }
    }

    @Test
    fun `a listener takes batches and may only cancel`() {
        engine.asked().use { session ->
            val job = session.generate(long)
            val kinds = mutableListOf<ErrorKind>()
            val last = java.util.concurrent.CompletableFuture<Event>()
            job.listen(
                object : EventListener {
                    override fun onEvents(events: List<Event>): Boolean {
                        for (call in listOf({ engine.info(); Unit }, { session.info(); Unit }, { session.close() }, { job.close() })) {
                            kinds += assertFailsWith<RefrainException> { call() }.kind
                        }
                        job.cancel()
                        events.last().takeIf { it is Event.Failed }?.let { last.complete(it) }
                        return true
                    }
                },
            )
            assertEquals(ErrorKind.CANCELLED, (last.get() as Event.Failed).error.kind)
            assertEquals(setOf(ErrorKind.REENTRANT), kinds.toSet())
            // What a refused close has not closed.
            session.info()
            job.close()
        }
    }

    @Test
    fun `a listener that throws ends its job`() {
        class Unusual : Throwable("not an Exception")
        for (thrown in listOf(IllegalStateException("a listener's own"), AssertionError(), Unusual())) {
            engine.asked().use { session ->
                val job = session.generate(long)
                job.listen(
                    object : EventListener {
                        override fun onEvents(events: List<Event>): Boolean = throw thrown
                    },
                )
                assertKind(ErrorKind.LISTENER) { job.wait() }
                job.close()
                session.info()
            }
        }
    }

    @Test
    fun `a listener that has enough cancels`() {
        engine.asked().use { session ->
            val job = session.generate(long)
            job.listen(
                object : EventListener {
                    override fun onEvents(events: List<Event>): Boolean = false
                },
            )
            assertKind(ErrorKind.CANCELLED) { job.wait() }
        }
    }

    @Test
    fun `a model or a session that does not fit is refused`() {
        assertKind(ErrorKind.OUT_OF_MEMORY) { Engine.open(options(memoryLimitBytes = 1000uL), null) }
        val ofSession = SessionOptions(contextLen = 256u)
        val memory = estimateMemory(options(), ofSession)
        // Room for a session and a half.
        val limit = memory.totalBytes + memory.sessionBytes / 2u
        Engine.open(options(memoryLimitBytes = limit), null).use { small ->
            val one = small.session(ofSession, null)
            val error = assertFailsWith<RefrainException> { small.session(ofSession, null) }
            assertEquals(ErrorKind.OUT_OF_MEMORY, error.kind)
            assertEquals("memory_limit_bytes", error.info.field)
            assertEquals(limit, error.info.limit)
            one.close()
            small.session(ofSession, null).close()
        }
    }

    @Test
    fun `bad input is an error with the place`() {
        val error = assertFailsWith<RefrainException> { Engine.open(EngineOptions(path = "/nowhere/model.gguf"), null) }
        assertEquals(ErrorKind.NOT_FOUND, error.kind)
        assertTrue(error.message!!.startsWith(error.info.message))
        engine.asked().use { session ->
            for (text in listOf("é\uD83C", "é\uDF89", "é\uDF89\uD83C")) {
                val lone = assertFailsWith<RefrainException> { session.append(Role.USER, text) }
                assertEquals(ErrorKind.NOT_UTF8 to 2uL, lone.kind to lone.info.offset)
            }
            val after = assertFailsWith<RefrainException> { session.append(Role.USER, "\uD83C\uDF89€\uD83C") }
            assertEquals(7uL, after.info.offset)
            session.append(Role.USER, "a\u0000b \uD83C\uDF89")
            assertEquals("a\u0000b \uD83C\uDF89", session.messages().last().content)
            assertKind(ErrorKind.INVALID_ARGUMENT) { session.generate(GenerateOptions(temperature = Float.NaN)) }
            assertKind(ErrorKind.INVALID_ARGUMENT) { session.generate(GenerateOptions(seed = ULong.MAX_VALUE)) }
            session.info()
        }
        assertKind(ErrorKind.INVALID_ARGUMENT) { engine.session(SessionOptions(contextLen = 0u), null) }
    }

    @Test
    fun `an object that nobody has is closed by the collector of garbage`() {
        var session: Session? = engine.asked()
        var job: Job? = session!!.generate(long)
        assertKind(ErrorKind.BUSY) { session.info() }
        assertNotEquals(null, job)
        @Suppress("UNUSED_VALUE", "ASSIGNED_BUT_NEVER_ACCESSED_VARIABLE")
        job = null
        // The cleaner's thread cancels the job, and the session is free.
        val end = System.nanoTime() + 10_000_000_000
        var isFree = false
        while (!isFree && System.nanoTime() < end) {
            System.gc()
            Thread.sleep(5)
            isFree = session.isFree()
        }
        assertTrue(isFree)
        assertFalse(session.uniffiIsDestroyed)
        session.close()
    }

    @Test
    fun `a coroutine that is cancelled while it starts leaves no job`(): Unit = runBlocking {
        engine.asked().use { session ->
            repeat(20) { round ->
                val starting = launch(Dispatchers.Default) {
                    assertFailsWith<CancellationException> { jobFlow { session.generate(long) }.collect {} }
                }
                delay(round.toLong() / 4)
                starting.cancelAndJoin()
                session.info()
            }
        }
    }
}
