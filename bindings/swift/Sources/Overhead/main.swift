// What a token costs in Swift: `bindings/swift/check --bench`. The same output is decoded in turns: by a job whose events nobody takes
// until it has ended, by batches, and by an asynchronous sequence. The first is the engine's own time in its thread; the differences are
// what Swift adds.
import Foundation
import Refrain

let tokens: UInt32 = 900
let options = GenerateOptions(
    maxTokens: tokens, jsonSchema: #"{"type": "array", "items": {"type": "integer"}, "minItems": 900}"#)
let engine = try Engine.open(options: EngineOptions(path: CommandLine.arguments[1], threads: 1, measureMs: 0), listener: nil)
let ways: [(String, (Session) async throws -> JobResult)] = [
    ("job alone", { session in try session.generate(options: options).wait() }),
    (
        "batches by nextEvents",
        { session in
            let job = try session.generate(options: options)
            while true {
                if case .done(let result)? = try job.nextEvents(maxWaitMs: 1000).last { return result }
            }
        }
    ),
    ("asynchronous sequence", { session in try await jobEvents { try session.generate(options: options) }.result() }),
]
var times = [[Double]](repeating: [], count: ways.count)
for _ in 0..<21 {
    for (index, (_, take)) in ways.enumerated() {
        let session = try engine.session(
            options: SessionOptions(contextLen: 1024, drafting: .off, history: false), history: nil)
        try session.appendText(text: "The train leaves at")
        let start = Date()
        let result = try await take(session)
        times[index].append(Date().timeIntervalSince(start) * 1e6 / Double(result.stats.tokens))
    }
}
let medians = times.map { $0.sorted()[$0.count / 2] }
for ((name, _), us) in zip(ways, medians) {
    print(name.padding(toLength: 24, withPad: " ", startingAt: 0), String(format: "%8.2f µs per token, %+.2f µs", us, us - medians[0]))
}
