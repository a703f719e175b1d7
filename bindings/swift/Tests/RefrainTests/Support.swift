import Foundation
import Testing

@testable import Refrain

let root = URL(fileURLWithPath: ProcessInfo.processInfo.environment["REFRAIN_ROOT"] ?? "../../../..")
let model = root.appendingPathComponent("fixtures/target.gguf").path

func engineOptions(memoryLimitBytes: UInt64? = nil, units: Units? = nil) -> EngineOptions {
    EngineOptions(path: model, threads: 1, memoryLimitBytes: memoryLimitBytes, measureMs: 0, units: units)
}

func makeEngine(units: Units? = nil) throws -> Engine {
    try Engine.open(options: engineOptions(units: units), listener: nil)
}

extension Engine {
    /// A session with a question.
    func asked() throws -> Session {
        let session = try session(options: SessionOptions(contextLen: 1024), history: nil)
        try session.append(role: .user, content: "Who repairs the tap?")
        return session
    }
}

/// An output of at least 600 tokens.
let long = GenerateOptions(
    maxTokens: 960, jsonSchema: #"{"type": "array", "items": {"type": "integer"}, "minItems": 600}"#)

let short = GenerateOptions(maxTokens: 8)

/// The kind of the error that a call throws; `nil` if it throws none.
func kind(_ call: () throws -> Void) -> ErrorKind? {
    do {
        try call()
        return nil
    } catch {
        return (error as? RefrainError)?.kind
    }
}

func kind(_ call: () async throws -> Void) async -> ErrorKind? {
    do {
        try await call()
        return nil
    } catch {
        return (error as? RefrainError)?.kind
    }
}

/// A folder with two notes, and the place of an index.
struct Folders {
    let notes: URL
    let index: String
    let store: String

    init() throws {
        let folder = FileManager.default.temporaryDirectory.appendingPathComponent("refrain-\(UUID().uuidString)")
        notes = folder.appendingPathComponent("notes")
        index = folder.appendingPathComponent("index").path
        store = folder.appendingPathComponent("store").path
        try FileManager.default.createDirectory(at: notes, withIntermediateDirectories: true)
        try "# Kitchen\n\nThe tap drips. Ada Voss repairs it on 3 May.".write(
            to: notes.appendingPathComponent("kitchen.md"), atomically: true, encoding: .utf8)
        try "# Car\n\nQulittus Works takes care of the repair of the car.".write(
            to: notes.appendingPathComponent("car.md"), atomically: true, encoding: .utf8)
    }
}
