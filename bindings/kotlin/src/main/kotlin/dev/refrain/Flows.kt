package dev.refrain

import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.async
import kotlinx.coroutines.channels.awaitClose
import kotlinx.coroutines.coroutineScope
import kotlinx.coroutines.ensureActive
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.callbackFlow
import kotlinx.coroutines.flow.emitAll
import kotlinx.coroutines.flow.flow
import kotlinx.coroutines.flow.last
import kotlinx.coroutines.flow.mapNotNull
import kotlinx.coroutines.launch
import kotlinx.coroutines.withContext

/** How long a reader sleeps without an event, in milliseconds. Events and cancellation wake it at once. */
private const val WAIT_MS = 10_000u

/**
 * Starts a job for each collection, and closes it at the end: `jobFlow { session.generate() }`.
 *
 * Starting may take long (a search, the layout of a prompt) and runs on [Dispatchers.IO], as does one thread for each flow that waits for
 * events. The events are those of [events], with the same errors; what `start` throws is thrown too.
 */
public fun jobFlow(start: () -> Job): Flow<Event> = flow {
    // (Beside the result of `withContext`, which is lost if the coroutine is cancelled meanwhile.)
    var job: Job? = null
    try {
        withContext(Dispatchers.IO) { job = start() }
        job?.let { emitAll(it.events()) }
    } finally {
        job?.close()
    }
}

/**
 * The events of the job, up to [Event.Done]. A job has one reader at a time.
 *
 * Cancelling the collector cancels the job, which ends before the model's next layer; the collector returns after that.
 *
 * @throws RefrainException what [Event.Failed] says in place of the event: [ErrorKind.CANCELLED] if somebody has cancelled or closed the
 *   job itself; [ErrorKind.BUSY] if it has another reader; [ErrorKind.CLOSED].
 */
public fun Job.events(): Flow<Event> = callbackFlow {
    val job = this@events
    var isRefused = false
    launch(Dispatchers.IO) {
        try {
            var isOver = false
            while (!isOver) {
                val events = job.nextEvents(WAIT_MS)
                for (event in events) {
                    if (event is Event.Failed) throw RefrainException.Failed(event.error)
                    isOver = event is Event.Done
                    send(event)
                }
                // (Another reader may have taken the last one before.)
                isOver = isOver || events.isEmpty() && job.isEnded()
            }
            close()
        } catch (error: RefrainException) {
            // (Of a collector that was cancelled, the job's end is no failure.)
            ensureActive()
            // (Another reader's job goes on.)
            isRefused = error.kind == ErrorKind.BUSY
            close(error)
        }
    }
    awaitClose { if (!isRefused) job.stop() }
}

/**
 * The result of the job. Cancelling the coroutine cancels the job.
 *
 * @throws RefrainException as [events].
 */
public suspend fun Job.await(): JobResult = coroutineScope {
    val job = this@await
    // (Its failure must not fail this scope, which the caller's cancellation ends.)
    val outcome = async(Dispatchers.IO) { runCatching { job.wait() } }
    try {
        outcome.await()
    } catch (stopped: CancellationException) {
        job.stop()
        throw stopped
    }
}.getOrThrow()

/** Cancels the job, unless somebody has closed it. */
private fun Job.stop() {
    try {
        cancel()
    } catch (error: RefrainException) {
        if (error.kind != ErrorKind.CLOSED) throw error
    }
}

/** The pieces of the answer as they come: whole characters, without the reasoning. */
public fun Flow<Event>.text(): Flow<String> =
    mapNotNull { event -> (event as? Event.Text)?.takeIf { it.kind == TextKind.ANSWER }?.text }

/** Collects all events and gives the result. */
public suspend fun Flow<Event>.result(): JobResult = (last() as Event.Done).result

/**
 * Loads a model on [Dispatchers.IO]. Loading cannot be stopped: if the coroutine is cancelled, the model is closed when it is loaded.
 *
 * @param onProgress bytes that are read, and all of them; called on the loading thread, at most once for each percent.
 * @throws RefrainException as [Engine.open].
 */
public suspend fun Engine.Companion.load(
    options: EngineOptions,
    onProgress: ((done: Long, total: Long) -> Unit)? = null,
): Engine {
    val listener = onProgress?.let { show ->
        object : EventListener {
            override fun onEvents(events: List<Event>): Boolean {
                events.forEach { if (it is Event.Progress) show(it.done.toLong(), it.total.toLong()) }
                return true
            }
        }
    }
    var engine: Engine? = null
    try {
        return withContext(Dispatchers.IO) { open(options, listener).also { engine = it } }
    } catch (stopped: CancellationException) {
        engine?.close()
        throw stopped
    }
}
