package dev.refrain

/** How a piece of background work has ended, as `WorkManager` asks for it. */
public enum class WorkOutcome {
    /** All is done: `Result.success()`. */
    DONE,

    /** Something else has what it needs (memory, the folder, the engine), or a disk failed: `Result.retry()`. */
    AGAIN,

    /** It would fail again: `Result.failure()`. */
    FAILED,
}

/**
 * Work for which nobody waits. It runs in a coroutine of the caller, such as that of a `CoroutineWorker`, whose cancellation stops it: the
 * next run goes on from there. `RefrainWorker` of the AAR is the worker.
 */
public interface BackgroundWork {
    /** Does the work. It throws nothing but `CancellationException`. */
    public suspend fun run(): WorkOutcome
}

internal suspend fun outcome(work: suspend () -> WorkOutcome): WorkOutcome =
    try {
        work()
    } catch (error: RefrainException) {
        when (error.kind) {
            ErrorKind.BUSY, ErrorKind.CANCELLED, ErrorKind.IN_USE, ErrorKind.IO, ErrorKind.OUT_OF_MEMORY -> WorkOutcome.AGAIN
            else -> WorkOutcome.FAILED
        }
    }
