package dev.refrain

import kotlin.time.Duration
import kotlin.time.Duration.Companion.seconds
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.withContext

/**
 * Tells an engine what the device reports, by the numbers of Android: an app calls it from its own callbacks, or uses `AndroidDevice` of
 * the AAR, which registers them.
 *
 * Every report changes speed and memory, never a text. The calls take microseconds, except that [onTrimMemory] frees memory; any thread
 * may call them. After the engine was closed, they do nothing.
 */
public class DeviceReports(private val engine: Engine) {
    /** @param level `ComponentCallbacks2.TRIM_MEMORY_*`. It holds until [onForeground], or until a level below `RUNNING_LOW` (10). */
    public fun onTrimMemory(level: Int): Unit = report(DeviceState(memory = memoryPressureFromAndroid(level)))

    /** `ComponentCallbacks.onLowMemory`. */
    public fun onLowMemory(): Unit = report(DeviceState(memory = MemoryPressure.CRITICAL))

    /** The app is visible again: what was given back is built again when it is needed. */
    public fun onForeground(): Unit = report(DeviceState(memory = MemoryPressure.NORMAL))

    /** @param status `PowerManager.THERMAL_STATUS_*`, 0 to 6. */
    public fun onThermalStatusChanged(status: Int): Unit = report(DeviceState(thermal = thermalStateFromAndroid(status)))

    /**
     * @param isCharging whether the device is plugged in.
     * @param isPowerSaveMode `PowerManager.isPowerSaveMode`.
     */
    public fun onPowerChanged(isCharging: Boolean, isPowerSaveMode: Boolean): Unit = report(
        DeviceState(
            power = when {
                isPowerSaveMode -> PowerState.SAVER
                isCharging -> PowerState.MAINS
                else -> PowerState.BATTERY
            },
        ),
    )

    /**
     * Cancels the engine's jobs, waits for their ends and writes histories: before the system freezes the process. Sessions stay.
     *
     * @return null if the engine is closed.
     * @throws RefrainException a history cannot be written; the jobs are cancelled all the same.
     */
    public suspend fun onBackground(maxWait: Duration = 2.seconds): SuspendReport? = withContext(Dispatchers.IO) {
        val ms = maxWait.inWholeMilliseconds.coerceIn(0, UInt.MAX_VALUE.toLong()).toUInt()
        unlessClosed { engine.prepareToSuspend(ms) }
    }

    private fun report(state: DeviceState) {
        unlessClosed { engine.setDeviceState(state) }
    }

    private fun <T> unlessClosed(call: () -> T): T? =
        try {
            call()
        } catch (error: RefrainException) {
            if (error.kind != ErrorKind.CLOSED && error.kind != ErrorKind.POISONED) throw error
            null
        }
}
