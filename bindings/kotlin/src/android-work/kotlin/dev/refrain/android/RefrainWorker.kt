package dev.refrain.android

import android.content.Context
import androidx.work.CoroutineWorker
import androidx.work.WorkerParameters
import dev.refrain.BackgroundWork
import dev.refrain.WorkOutcome

/**
 * A worker of `WorkManager` for indexing and prefetching. An app gives it what to do, and asks for it with constraints such as
 * `setRequiresCharging(true)` and `setRequiresDeviceIdle(true)`. When the system stops it, the coroutine is cancelled, and the job with it.
 */
public abstract class RefrainWorker(context: Context, parameters: WorkerParameters) :
    CoroutineWorker(context, parameters) {
    /** The work, such as an [dev.refrain.IndexWork]. What it opens is closed by [close]. */
    public abstract suspend fun work(): BackgroundWork

    /** Called when the work has ended or was stopped. */
    public open fun close() {}

    final override suspend fun doWork(): Result =
        try {
            when (work().run()) {
                WorkOutcome.DONE -> Result.success()
                WorkOutcome.AGAIN -> Result.retry()
                WorkOutcome.FAILED -> Result.failure()
            }
        } finally {
            close()
        }
}
