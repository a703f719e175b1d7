import Foundation
import Testing

@testable import Refrain

/// The vectors that all languages share.
@Suite struct VectorsTests {
    @Test(arguments: ["conversation", "json_schema", "edit", "cancelled", "out_of_memory"])
    func givesWhatEveryLanguageGives(name: String) async throws {
        let data = try Data(contentsOf: root.appendingPathComponent("tests/vectors/\(name).json"))
        let vector = try JSONDecoder().decode(Vector.self, from: data)
        let options = EngineOptions(
            path: model, threads: vector.engine.threads, memoryLimitBytes: vector.engine.memory_limit_bytes,
            measureMs: vector.engine.measure_ms)
        let engine: Engine
        do {
            engine = try Engine.open(options: options, listener: nil)
        } catch let error as RefrainError {
            #expect(Expected(error: Expected.Failure(error.info)) == vector.expect)
            return
        }
        let session = SessionOptions(contextLen: vector.session?.context_len)
        if let task = vector.task {
            #expect(task.task == "edit")
            let assistant = try engine.assistant(options: AssistantOptions(session: session))
            let request = TaskRequest.edit(EditRequest(text: task.text, instruction: task.instruction))
            let job = try assistant.start(request: request, options: vector.options?.options ?? GenerateOptions())
            #expect(try await ended(job) == vector.expect)
            return
        }
        let conversation = try engine.session(options: session, history: nil)
        for step in try #require(vector.steps) {
            if let turn = step.append {
                #expect(turn.role == "user")
                try conversation.append(role: .user, content: turn.content)
                continue
            }
            let job = try conversation.generate(options: try #require(step.generate).options)
            if step.cancel == true { job.cancel() }
            #expect(try await ended(job) == step.expect)
        }
    }

    private func ended(_ job: Job) async throws -> Expected {
        var text = ""
        var live: [Expected.Change] = []
        do {
            for try await event in job.events() {
                switch event {
                case .text(let piece, _, _): text += piece
                case .edit(let change): live.append(Expected.Change(change))
                case .done(let result):
                    #expect(result.text == text)
                    let changes = live.isEmpty ? nil : result.changes.map(Expected.Change.init)
                    return Expected(
                        text: result.text, finish: result.finish.map(snake), seed: result.seed, changes: changes,
                        live: live.isEmpty ? nil : live)
                default: break
                }
            }
        } catch let error as RefrainError {
            return Expected(error: Expected.Failure(error.info))
        }
        throw CancellationError()
    }
}

/// The name of a case, as JSON has it.
private func snake<Value>(_ value: Value) -> String {
    String(describing: value).map { $0.isUppercase ? "_\($0.lowercased())" : "\($0)" }.joined()
}

private struct Vector: Decodable {
    struct Engine: Decodable {
        let threads: UInt32?
        let measure_ms: UInt32?
        let memory_limit_bytes: UInt64?
    }
    struct Session: Decodable { let context_len: UInt32? }
    struct Turn: Decodable {
        let role: String
        let content: String
    }
    struct Task: Decodable {
        let task: String
        let text: String
        let instruction: String
    }
    struct Options: Decodable {
        let max_tokens: UInt32?
        let temperature: Float?
        let top_p: Float?
        let seed: UInt64?
        let json_schema: String?

        var options: GenerateOptions {
            GenerateOptions(
                maxTokens: max_tokens, temperature: temperature, topP: top_p, seed: seed, jsonSchema: json_schema)
        }
    }
    struct Step: Decodable {
        let append: Turn?
        let generate: Options?
        let cancel: Bool?
        let expect: Expected?
    }

    let engine: Engine
    let session: Session?
    let steps: [Step]?
    let task: Task?
    let options: Options?
    let expect: Expected?
}

private struct Expected: Decodable, Equatable {
    struct Failure: Decodable, Equatable {
        let code: UInt32
        let kind: String
        let field: String?
        let limit: UInt64?

        init(_ info: ErrorInfo) {
            (code, kind, field, limit) = (info.code, snake(info.kind), info.field, info.limit)
        }
    }
    struct Place: Decodable, Equatable {
        let start: UInt64
        let end: UInt64
    }
    struct Change: Decodable, Equatable {
        let kind: String
        let old: Place
        let new: Place

        init(_ change: Refrain.Change) {
            kind = snake(change.kind)
            old = Place(start: change.old.start, end: change.old.end)
            new = Place(start: change.new.start, end: change.new.end)
        }
    }

    var text: String?
    var finish: String?
    var seed: UInt64?
    var changes: [Change]?
    var live: [Change]?
    var error: Failure?
}
