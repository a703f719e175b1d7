package dev.refrain

import java.nio.file.Path
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith

internal val root: Path = Path.of(System.getProperty("refrain.root"))
internal val model: String = root.resolve("fixtures/target.gguf").toString()

internal fun options(memoryLimitBytes: ULong? = null, units: Units? = Units.UTF16) =
    EngineOptions(path = model, threads = 1u, measureMs = 0u, memoryLimitBytes = memoryLimitBytes, units = units)

internal fun engine(): Engine = Engine.open(options(), null)

internal fun Engine.asked(): Session {
    val session = session(SessionOptions(contextLen = 1024u), null)
    session.append(Role.USER, "Who repairs the tap?")
    return session
}

/** An output of at least 600 tokens. */
internal val long = GenerateOptions(
    maxTokens = 960u,
    jsonSchema = """{"type": "array", "items": {"type": "integer"}, "minItems": 600}""",
)

internal val short = GenerateOptions(maxTokens = 8u)

internal fun assertKind(kind: ErrorKind, call: () -> Unit) {
    val error = assertFailsWith<RefrainException> { call() }
    assertEquals(kind, error.kind, error.message)
    assertEquals(kind.value.toInt(), error.code)
}
