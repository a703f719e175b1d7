package dev.refrain

import kotlin.io.path.readText
import kotlin.test.assertEquals
import kotlin.test.assertNotNull
import kotlinx.coroutines.runBlocking
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonNull
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.buildJsonArray
import kotlinx.serialization.json.buildJsonObject
import kotlinx.serialization.json.contentOrNull
import kotlinx.serialization.json.jsonArray
import kotlinx.serialization.json.jsonObject
import kotlinx.serialization.json.jsonPrimitive
import kotlinx.serialization.json.put
import org.junit.jupiter.params.ParameterizedTest
import org.junit.jupiter.params.provider.ValueSource

/** The vectors that all languages share. (With notes there is one more, in `src/notes-test`.) */
class VectorsTest {
    @ParameterizedTest
    @ValueSource(strings = ["conversation", "json_schema", "cancelled", "out_of_memory"])
    fun `gives what every language gives`(name: String): Unit = Vectors().gives(name)
}

/** Runs a vector. `task` starts the job of one that asks for a task. */
internal class Vectors(private val task: ((Engine, JsonObject, SessionOptions, GenerateOptions) -> Job)? = null) {
    fun gives(name: String): Unit = runBlocking {
        val vector = Json.parseToJsonElement(root.resolve("tests/vectors/$name.json").readText()).jsonObject
        val given = vector.getValue("engine").jsonObject
        val options = EngineOptions(
            path = model,
            threads = given.number("threads")?.toUInt(),
            measureMs = given.number("measure_ms")?.toUInt(),
            memoryLimitBytes = given.number("memory_limit_bytes")?.toULong(),
            units = Units.UTF8,
        )
        val engine = try {
            Engine.open(options, null)
        } catch (error: RefrainException) {
            check(error, vector.getValue("expect"))
            return@runBlocking
        }
        engine.use { run(it, vector) }
    }

    private suspend fun run(engine: Engine, vector: JsonObject) {
        val options = SessionOptions(contextLen = vector["session"]?.jsonObject?.number("context_len")?.toUInt())
        vector["task"]?.jsonObject?.let { given ->
            val job = assertNotNull(task)(engine, given, options, generate(vector["options"]!!.jsonObject))
            check(job, vector.getValue("expect"))
            return
        }
        engine.session(options, null).use { session ->
            for (step in vector.getValue("steps").jsonArray.map { it.jsonObject }) {
                val turn = step["append"]?.jsonObject
                if (turn != null) {
                    assertEquals("user", turn.text("role"))
                    session.append(Role.USER, turn.text("content")!!)
                    continue
                }
                val job = session.generate(generate(step.getValue("generate").jsonObject))
                if (step["cancel"]?.jsonPrimitive?.content == "true") job.cancel()
                check(job, step.getValue("expect"))
            }
        }
    }

    private fun generate(given: JsonObject): GenerateOptions {
        assertEquals(emptySet(), given.keys - setOf("max_tokens", "temperature", "top_p", "seed", "json_schema"))
        return GenerateOptions(
            maxTokens = given.number("max_tokens")?.toUInt(),
            temperature = given.number("temperature")?.toFloat(),
            topP = given.number("top_p")?.toFloat(),
            seed = given.number("seed")?.toULong(),
            jsonSchema = given.text("json_schema"),
        )
    }

    private suspend fun check(job: Job, expected: JsonElement): Unit = job.use {
        val text = StringBuilder()
        val live = mutableListOf<Change>()
        var result: JobResult? = null
        try {
            job.events().collect { event ->
                when (event) {
                    is Event.Text -> text.append(event.text)
                    is Event.Edit -> live += event.change
                    is Event.Done -> result = event.result
                    else -> {}
                }
            }
        } catch (error: RefrainException) {
            check(error, expected)
            return
        }
        val done = assertNotNull(result)
        assertEquals(done.text, text.toString())
        val fields = buildJsonObject {
            put("text", done.text)
            put("finish", done.finish?.name?.lowercase())
            put("seed", done.seed?.toLong())
            if (live.isNotEmpty()) {
                put("changes", json(done.changes))
                put("live", json(live))
            }
        }
        assertEquals(expected, fields)
    }

    private fun check(error: RefrainException, expected: JsonElement) {
        val info = error.info
        val fields = buildJsonObject {
            put("code", info.code.toLong())
            put("kind", info.kind.name.lowercase())
            info.field?.let { put("field", it) }
            info.limit?.let { put("limit", it.toLong()) }
        }
        assertEquals(expected.jsonObject["error"], fields)
    }

    private fun json(changes: List<Change>) = buildJsonArray {
        for (change in changes) {
            add(
                buildJsonObject {
                    put("kind", change.kind.name.lowercase())
                    put("old", json(change.old))
                    put("new", json(change.new))
                },
            )
        }
    }

    private fun json(place: Place) = buildJsonObject {
        put("start", place.start.toLong())
        put("end", place.end.toLong())
    }

    private fun JsonObject.number(name: String) = this[name].takeIf { it !is JsonNull }?.jsonPrimitive?.content
}

internal fun JsonObject.text(name: String): String? = (this[name] as? JsonPrimitive)?.contentOrNull
