// What a token costs in Swift: `bindings/swift/check --bench`. The same output is decoded in turns: by a job whose events nobody takes
// until it has ended, by batches, and by an asynchronous sequence. The first is the engine's own time in its thread; the differences are
// what Swift adds. Time of processors is that of all threads of the process: other programs do not change it, and work beside the engine's
// thread counts.
import Foundation
import Refrain

let options = GenerateOptions(
    maxTokens: 900, jsonSchema: #"{"type": "array", "items": {"type": "integer"}, "minItems": 900}"#)
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
var walls = [[Double]](repeating: [], count: ways.count)
var times = walls
for _ in 0..<21 {
    for (index, (_, take)) in ways.enumerated() {
        let session = try engine.session(
            options: SessionOptions(contextLen: 1024, drafting: .off, history: false), history: nil)
        try session.appendText(text: "The train leaves at")
        // (`clock` counts microseconds on every POSIX system.)
        let (start, started) = (Date(), clock())
        let tokens = Double(try await take(session).stats.tokens)
        walls[index].append(Date().timeIntervalSince(start) * 1e6 / tokens)
        times[index].append(Double(clock() - started) / tokens)
    }
}
func median(_ values: [Double]) -> Double { values.sorted()[values.count / 2] }
let alone = median(times[0])
for (index, (name, _)) in ways.enumerated() {
    let (wall, us) = (median(walls[index]), median(times[index]))
    print(
        name.padding(toLength: 24, withPad: " ", startingAt: 0),
        String(format: "%8.2f µs per token, of processors %8.2f µs, %+.2f µs", wall, us, us - alone))
}
