package dev.refrain

import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlinx.coroutines.runBlocking
import org.junit.jupiter.api.Test

/** What a device reports, and the numbers that apps keep. */
class DeviceTest {
    @Test
    fun `reports of the device change no text`(): Unit = runBlocking {
        val engine = engine()
        val session = engine.asked()
        val reports = DeviceReports(engine)
        val texts = (0..6).map { status ->
            reports.onThermalStatusChanged(status)
            reports.onTrimMemory(listOf(5, 10, 15, 20, 40, 60, 80)[status])
            reports.onPowerChanged(isCharging = status % 2 == 0, isPowerSaveMode = status > 3)
            engine.asked().use { it.generate(short).await().text }
        }
        assertEquals(1, texts.toSet().size)
        reports.onLowMemory()
        assertEquals(texts[0], session.generate(short).await().text)
        reports.onForeground()
        val running = session.generate(long)
        assertEquals(SuspendReport(cancelled = 1u, running = 0u), reports.onBackground())
        assertFailsWith<RefrainException> { running.await() }
        engine.close()
        reports.onTrimMemory(80)
        assertEquals(null, reports.onBackground())
    }

    @Test
    fun `numbers of Android have their states`() {
        assertEquals(
            listOf(ThermalState.NOMINAL, ThermalState.NOMINAL, ThermalState.FAIR, ThermalState.SERIOUS, ThermalState.CRITICAL, ThermalState.CRITICAL, ThermalState.CRITICAL),
            (0..6).map { thermalStateFromAndroid(it) },
        )
        assertEquals(
            listOf(MemoryPressure.NORMAL, MemoryPressure.WARNING, MemoryPressure.CRITICAL, MemoryPressure.WARNING, MemoryPressure.CRITICAL),
            listOf(5, 10, 15, 20, 80).map { memoryPressureFromAndroid(it) },
        )
    }

    @Test
    fun `every kind has the code that apps know`() {
        val text = root.resolve("bindings/core/README.md").toFile().readText()
        val known = Regex("""^\| (\d+) \| `(\w+)` \|""", RegexOption.MULTILINE).findAll(text)
            .associate { it.groupValues[2] to it.groupValues[1].toUInt() }
        assertEquals(known, ErrorKind.entries.associate { it.name.lowercase() to it.value })
    }
}
