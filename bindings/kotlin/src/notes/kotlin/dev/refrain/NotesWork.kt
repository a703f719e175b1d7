package dev.refrain

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
