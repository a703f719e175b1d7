package dev.refrain.android

import android.content.BroadcastReceiver
import android.content.ComponentCallbacks2
import android.content.Context
import android.content.Intent
import android.content.IntentFilter
import android.content.res.Configuration
import android.os.BatteryManager
import android.os.Build
import android.os.PowerManager
import dev.refrain.DeviceReports
import dev.refrain.Engine

/**
 * Registers the callbacks of memory, heat and power, and tells them an engine until it is closed. Make it on the main thread, after the
 * engine; close it before the engine.
 *
 * @property reports for what only the app knows: [DeviceReports.onForeground] and [DeviceReports.onBackground].
 */
public class AndroidDevice(context: Context, engine: Engine) : AutoCloseable {
    public val reports: DeviceReports = DeviceReports(engine)
    private val context = context.applicationContext
    private val power = this.context.getSystemService(Context.POWER_SERVICE) as PowerManager

    private val memory = object : ComponentCallbacks2 {
        override fun onTrimMemory(level: Int) = reports.onTrimMemory(level)

        @Deprecated("Called by Android before 34.")
        override fun onLowMemory() = reports.onLowMemory()

        override fun onConfigurationChanged(newConfig: Configuration) = Unit
    }

    private val energy = object : BroadcastReceiver() {
        override fun onReceive(context: Context, intent: Intent) = reportPower()
    }

    // (A class of Android 29: made only there.)
    private val heat: Any? = if (Build.VERSION.SDK_INT >= Build.VERSION_CODES.Q) {
        PowerManager.OnThermalStatusChangedListener { status -> reports.onThermalStatusChanged(status) }
    } else {
        null
    }

    init {
        this.context.registerComponentCallbacks(memory)
        val events = IntentFilter(PowerManager.ACTION_POWER_SAVE_MODE_CHANGED)
        events.addAction(Intent.ACTION_POWER_CONNECTED)
        events.addAction(Intent.ACTION_POWER_DISCONNECTED)
        // (Broadcasts of the system only, which need no flag of exported receivers.)
        this.context.registerReceiver(energy, events)
        if (Build.VERSION.SDK_INT >= Build.VERSION_CODES.Q) {
            power.addThermalStatusListener(heat as PowerManager.OnThermalStatusChangedListener)
        }
        reportPower()
    }

    private fun reportPower() {
        val battery = context.registerReceiver(null, IntentFilter(Intent.ACTION_BATTERY_CHANGED))
        val isCharging = (battery?.getIntExtra(BatteryManager.EXTRA_PLUGGED, 0) ?: 0) != 0
        reports.onPowerChanged(isCharging, power.isPowerSaveMode)
    }

    override fun close() {
        context.unregisterComponentCallbacks(memory)
        context.unregisterReceiver(energy)
        if (Build.VERSION.SDK_INT >= Build.VERSION_CODES.Q) {
            power.removeThermalStatusListener(heat as PowerManager.OnThermalStatusChangedListener)
        }
    }
}
