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

/**
 * Brings an index of notes up to date.
 *
 * @property paths files and folders that are added first; empty: what was added before is read again where it has changed.
 * @property onUpdate takes what was done, on the coroutine's thread.
 */
public class IndexWork(
    private val notes: Notes,
    private val paths: List<String> = emptyList(),
    private val onUpdate: (UpdateReport) -> Unit = {},
) : BackgroundWork {
    override suspend fun run(): WorkOutcome = outcome {
        val result = jobFlow { if (paths.isEmpty()) notes.update() else notes.add(paths) }.result()
        val update = result.update
        update?.let(onUpdate)
        if (update?.isIncomplete == true) WorkOutcome.AGAIN else WorkOutcome.DONE
    }
}

/**
 * Computes prompts before they are asked, and keeps them in the assistant's store: the first word of the answer then comes without a wait.
 *
 * @property requests [TaskRequest.PrefetchAsk], [TaskRequest.PrefetchSummarize] or [TaskRequest.PrefetchReply]. They give way to every
 *   other task, and one that finds nothing is left out.
 */
public class PrefetchWork(private val assistant: Assistant, private val requests: List<TaskRequest>) : BackgroundWork {
    override suspend fun run(): WorkOutcome = outcome {
        for (request in requests) {
            try {
                jobFlow { assistant.start(request, GenerateOptions(priority = Priority.BACKGROUND)) }.result()
            } catch (error: RefrainException) {
                if (error.kind != ErrorKind.NOT_IN_NOTES && error.kind != ErrorKind.NOTHING) throw error
            }
        }
        WorkOutcome.DONE
    }
}

private suspend fun outcome(work: suspend () -> WorkOutcome): WorkOutcome =
    try {
        work()
    } catch (error: RefrainException) {
        when (error.kind) {
            ErrorKind.BUSY, ErrorKind.CANCELLED, ErrorKind.IN_USE, ErrorKind.IO, ErrorKind.OUT_OF_MEMORY -> WorkOutcome.AGAIN
            else -> WorkOutcome.FAILED
        }
    }
