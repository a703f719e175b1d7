package dev.refrain

import java.nio.file.Files
import java.nio.file.Path
import kotlin.io.path.createDirectories
import kotlin.io.path.writeText
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertNotNull
import kotlin.test.assertTrue
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.cancelAndJoin
import kotlinx.coroutines.launch
import kotlinx.coroutines.runBlocking
import org.junit.jupiter.api.Test

/** Notes, tasks and background work. */
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
    fun `an edit gives what every language gives`(): Unit =
        Vectors { engine, given, session, options ->
            assertEquals("edit", given.text("task"))
            val request = EditRequest(text = given.text("text")!!, instruction = given.text("instruction")!!)
            engine.assistant(AssistantOptions(session = session)).start(TaskRequest.Edit(request), options)
        }.gives("edit")

    @Test
    fun `a program that forgets to close notes ends`() = ends("notes", program = "dev.refrain.NotesProgram")
}

/** A program that leaves notes open. */
internal object NotesProgram {
    @JvmStatic
    fun main(arguments: Array<String>) {
        val folders = Folders()
        val notes = Notes.open(NotesOptions(folder = folders.index))
        runBlocking { jobFlow { notes.add(listOf(folders.notes.toString())) }.result() }
        println("done")
    }
}

/** A folder with two notes, and the place of an index. */
internal class Folders {
    private val folder = Files.createTempDirectory("refrain-kotlin").also { it.toFile().deleteOnExit() }
    val notes: Path = folder.resolve("notes").createDirectories()
    val index: String = folder.resolve("index").toString()
    val store: String = folder.resolve("store").toString()

    init {
        notes.resolve("kitchen.md").writeText("# Kitchen\n\nThe tap drips. Ada Voss repairs it on 3 May.")
        notes.resolve("car.md").writeText("# Car\n\nQulittus Works takes care of the repair of the car.")
    }
}
