package dev.refrain

import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertNotNull
import kotlin.test.assertTrue
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.cancelAndJoin
import kotlinx.coroutines.launch
import kotlinx.coroutines.runBlocking
import org.junit.jupiter.api.Test

/** Notes, tasks, background work and the device. */
class NotesTest {
    private val folders = Folders()

    @Test
    fun `an answer has sources, in units of strings`(): Unit = runBlocking {
        Notes.open(NotesOptions(folder = folders.index)).use { notes ->
            var update: UpdateReport? = null
            assertEquals(WorkOutcome.DONE, IndexWork(notes, listOf(folders.notes.toString())) { update = it }.run())
            assertEquals(2uL, assertNotNull(update).added)
            assertEquals(WorkOutcome.DONE, IndexWork(notes).run())
            val hit = notes.search(SearchRequest(text = "Who is repairing the tap?")).first()
            assertEquals("Kitchen", hit.title)
            val word = hit.matched.first()
            assertTrue(hit.snippet.substring(word.start.toInt(), word.end.toInt()).contains("tap", ignoreCase = true))
        }
        engine().use { engine ->
            val options = AssistantOptions(notes = folders.index, store = folders.store, session = SessionOptions(contextLen = 1024u))
            engine.assistant(options).use { assistant ->
                val request = TaskRequest.Ask(AskRequest(question = "Who repairs the tap?"))
                val result = jobFlow { assistant.start(request, GenerateOptions(maxTokens = 48u)) }.result()
                assertEquals("Kitchen", result.sources.first().title)
                for (span in result.copied) {
                    val source = result.sources.first { it.number == span.source }.text
                    val there = source.substring(span.sourcePlace.start.toInt(), span.sourcePlace.end.toInt())
                    assertEquals(there, result.text.substring(span.place.start.toInt(), span.place.end.toInt()))
                }
                val unknown = TaskRequest.Ask(AskRequest(question = "Which colour has the elephant of Borneo?"))
                val error = assertFailsWith<RefrainException> { jobFlow { assistant.start(unknown, short) }.result() }
                assertEquals(ErrorKind.NOT_IN_NOTES, error.kind)
                assertEquals(WorkOutcome.DONE, PrefetchWork(assistant, listOf(TaskRequest.PrefetchAsk(request.v1), TaskRequest.PrefetchAsk(unknown.v1))).run())
                assistant.conversation(null, emptyList()).use { conversation ->
                    jobFlow { conversation.say(ChatRequest(text = "Hello", nPassages = 1u), short) }.result()
                    assertEquals(listOf(Role.USER, Role.ASSISTANT), conversation.turns().map { it.role })
                    assertEquals(16, conversation.id().length)
                }
            }
        }
    }

    @Test
    fun `an edit's places are those of strings`(): Unit = runBlocking {
        engine().use { engine ->
            engine.assistant(AssistantOptions(session = SessionOptions(contextLen = 512u))).use { assistant ->
                val old = "🎉 The café opens on Monday."
                val request = TaskRequest.Edit(EditRequest(text = old, instruction = "Change Monday to Tuesday."))
                val result = assistant.start(request, GenerateOptions(maxTokens = 48u)).await()
                val new = result.changes.filter { it.kind != ChangeKind.DELETE }
                assertEquals(result.text, new.joinToString("") { result.text.substring(it.new.start.toInt(), it.new.end.toInt()) })
                for (kept in result.changes.filter { it.kind == ChangeKind.KEEP }) {
                    assertEquals(
                        old.substring(kept.old.start.toInt(), kept.old.end.toInt()),
                        result.text.substring(kept.new.start.toInt(), kept.new.end.toInt()),
                    )
                }
            }
        }
    }

    @Test
    fun `work says whether it is worth another try`(): Unit = runBlocking {
        val notes = Notes.open(NotesOptions(folder = folders.index))
        assertEquals(WorkOutcome.FAILED, IndexWork(notes, listOf("/nowhere")).run())
        launch(Dispatchers.Default) { IndexWork(notes, listOf(root.toString())).run() }.cancelAndJoin()
        notes.close()
        assertEquals(WorkOutcome.FAILED, IndexWork(notes).run())
        engine().use { engine ->
            val without = engine.assistant(AssistantOptions())
            assertEquals(WorkOutcome.FAILED, PrefetchWork(without, listOf(TaskRequest.PrefetchAsk(AskRequest(question = "?")))).run())
        }
    }

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
