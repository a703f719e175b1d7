import Foundation
import Testing

@testable import Refrain

/// Jobs, objects and errors.
@Suite struct JobsTests {
    let engine: Engine

    init() throws {
        engine = try makeEngine()
    }

    @Test func eventsAreProgressTextAndTheResult() async throws {
        let session = try engine.asked()
        var events: [Event] = []
        for try await event in jobEvents({ try session.generate(options: short) }) { events.append(event) }
        guard case .progress(.prefill, let done, let total)? = events.first, case .done(let result)? = events.last else {
            Issue.record("\(events)")
            return
        }
        #expect(done <= total)
        var text = ""
        for case .text(let piece, _, _) in events { text += piece }
        #expect(text == result.text)
        #expect(result.stats.tokens == 8)
        #expect(try session.messages().map(\.role) == [.user, .assistant])
        // As plain text, and as a result.
        try session.append(role: .user, content: "And the door?")
        var pieces = ""
        for try await piece in jobEvents({ try session.generate(options: short) }).text() { pieces += piece }
        #expect(!pieces.isEmpty)
        let again = try session.generate(options: short)
        #expect(try await again.result().stats.tokens == 8)
        #expect(try again.isEnded())
    }

    @Test func loadingTellsItsProgress() async throws {
        final class Seen: @unchecked Sendable {
            var all: [(UInt64, UInt64)] = []
        }
        let seen = Seen()
        let loaded = try await Engine.load(engineOptions()) { seen.all.append(($0, $1)) }
        #expect(!seen.all.isEmpty && seen.all.allSatisfy { $0.0 <= $0.1 })
        #expect(try loaded.info() == engine.info())
        let estimate = try estimateMemory(options: engineOptions(), session: SessionOptions())
        #expect(estimate.totalBytes == estimate.modelBytes + estimate.sessionBytes)
    }

    @Test func cancellingTheTaskCancelsTheJob() async throws {
        let session = try engine.asked()
        let reader = Task {
            var count = 0
            for try await _ in jobEvents({ try session.generate(options: long) }) { count += 1 }
            return (count, Task.isCancelled)
        }
        while kind({ _ = try session.info() }) != .busy { try await Task.sleep(nanoseconds: 1_000_000) }
        reader.cancel()
        #expect(try await reader.value.1)
        // Waits for the job, which is on its way home.
        _ = try session.info()
        // A reader that has enough does the same.
        for try await event in jobEvents({ try session.generate(options: long) }) {
            if case .text = event { break }
        }
        while kind({ _ = try session.info() }) == .busy { try await Task.sleep(nanoseconds: 1_000_000) }
        let waiting = Task { try await session.generate(options: long).result() }
        waiting.cancel()
        await #expect(throws: CancellationError.self) { _ = try await waiting.value }
        while kind({ _ = try session.info() }) == .busy { try await Task.sleep(nanoseconds: 1_000_000) }
        #expect(try await jobEvents { try session.generate(options: short) }.result().stats.tokens == 8)
    }

    @Test func aTaskThatIsCancelledWhileItStartsLeavesNoJob() async throws {
        let session = try engine.asked()
        for round in 0..<20 {
            let starting = Task { for try await _ in jobEvents({ try session.generate(options: long) }) {} }
            try await Task.sleep(nanoseconds: UInt64(round) * 200_000)
            starting.cancel()
            _ = try? await starting.value
            try await Task.sleep(nanoseconds: 2_000_000)
            while kind({ _ = try session.info() }) == .busy { try await Task.sleep(nanoseconds: 1_000_000) }
        }
        _ = try session.info()
    }

    @Test func aCancelledJobFailsWithItsCode() async throws {
        let session = try engine.asked()
        let job = try session.generate(options: long)
        job.cancel()
        job.cancel()
        do {
            for try await _ in job.events() {}
            Issue.record("no error")
        } catch let error as RefrainError {
            #expect(error.kind == .cancelled)
            #expect(error.code == 10)
            #expect(error.localizedDescription == error.info.message)
        }
        #expect(kind { _ = try job.wait() } == .cancelled)
    }

    @Test func aSecondUseIsBusy() async throws {
        let session = try engine.asked()
        let job = try session.generate(options: long)
        #expect(kind { _ = try session.info() } == .busy)
        #expect(kind { _ = try session.generate(options: short) } == .busy)
        let events = job.events()
        #expect(kind { _ = try job.nextEvents(maxWaitMs: 0) } == .busy)
        #expect(await kind { for try await _ in job.events() {} } == .busy)
        job.cancel()
        #expect(await kind { for try await _ in events {} } == .cancelled)
    }

    @Test func eventsAreReadOnceAndTheResultStays() async throws {
        let job = try engine.asked().generate(options: short)
        for try await _ in job.events() {}
        #expect(await kind { for try await _ in job.events() {} } == .wrongState)
        #expect(try job.wait().stats.tokens == 8)
    }

    @Test func closedObjectsRefuseAndAnEngineClosesWhatItHasMade() async throws {
        let engine = try makeEngine()
        let session = try engine.asked()
        try session.shutdown()
        try session.shutdown()
        #expect(kind { _ = try session.info() } == .closed)
        let other = try engine.asked()
        let job = try other.generate(options: long)
        try engine.shutdown()
        try engine.shutdown()
        #expect(await kind { _ = try await job.result() } == .cancelled)
        #expect(kind { _ = try other.info() } == .closed)
        #expect(kind { _ = try engine.info() } == .closed)
        try job.shutdown()
        job.cancel()
        #expect(kind { _ = try job.nextEvents(maxWaitMs: 0) } == .closed)
        #expect(await kind { for try await _ in job.events() {} } == .closed)
    }

    @Test func anObjectThatNobodyHoldsIsClosed() throws {
        let session = try engine.asked()
        _ = try session.generate(options: long)
        // The job was dropped, and so cancelled.
        _ = try session.info()
        let session2 = try Engine.open(options: engineOptions(), listener: nil).asked()
        // What was made from an engine that nobody holds goes on.
        #expect(try session2.generate(options: short).wait().stats.tokens == 8)
    }

    @Test func aListenerTakesBatchesAndMayOnlyCancel() throws {
        final class Listener: EventListener, @unchecked Sendable {
            let session: Session
            let job: Job
            var kinds: [ErrorKind?] = []
            let end = DispatchSemaphore(value: 0)

            init(session: Session, job: Job) {
                self.session = session
                self.job = job
            }

            func onEvents(events: [Event]) -> Bool {
                kinds.append(kind { _ = try session.info() })
                kinds.append(kind { try session.shutdown() })
                kinds.append(kind { try job.shutdown() })
                job.cancel()
                if case .failed(let error)? = events.last, error.kind == .cancelled { end.signal() }
                return true
            }
        }
        let session = try engine.asked()
        let job = try session.generate(options: long)
        let listener = Listener(session: session, job: job)
        try job.listen(listener: listener)
        #expect(listener.end.wait(timeout: .now() + 20) == .success)
        #expect(listener.kinds.allSatisfy { $0 == .reentrant })
        _ = try session.info()
    }

    @Test func aListenerThatHasEnoughCancels() throws {
        final class Listener: EventListener {
            func onEvents(events: [Event]) -> Bool { false }
        }
        let job = try engine.asked().generate(options: long)
        try job.listen(listener: Listener())
        #expect(kind { _ = try job.wait() } == .cancelled)
    }

    @Test func aModelOrASessionThatDoesNotFitIsRefused() throws {
        #expect(kind { _ = try Engine.open(options: engineOptions(memoryLimitBytes: 1000), listener: nil) } == .outOfMemory)
        let ofSession = SessionOptions(contextLen: 256)
        let memory = try estimateMemory(options: engineOptions(), session: ofSession)
        // Room for a session and a half.
        let limit = memory.totalBytes + memory.sessionBytes / 2
        let small = try Engine.open(options: engineOptions(memoryLimitBytes: limit), listener: nil)
        let one = try small.session(options: ofSession, history: nil)
        do {
            _ = try small.session(options: ofSession, history: nil)
            Issue.record("no error")
        } catch let error as RefrainError {
            #expect(error.kind == .outOfMemory)
            #expect(error.info.field == "memory_limit_bytes")
            #expect(error.info.limit == limit)
        }
        try one.shutdown()
        _ = try small.session(options: ofSession, history: nil)
    }

    @Test func badInputIsAnError() throws {
        #expect(kind { _ = try Engine.open(options: EngineOptions(path: "/nowhere/model.gguf"), listener: nil) } == .notFound)
        let session = try engine.asked()
        // (A string of Swift has no lone surrogates: it was repaired when it was made.)
        try session.append(role: .user, content: "a\u{0}b \u{1F389} \u{FEFF}")
        #expect(try session.messages().last?.content == "a\u{0}b \u{1F389} \u{FEFF}")
        #expect(kind { _ = try session.generate(options: GenerateOptions(temperature: .nan)) } == .invalidArgument)
        #expect(kind { _ = try session.generate(options: GenerateOptions(seed: .max)) } == .invalidArgument)
        #expect(kind { _ = try engine.session(options: SessionOptions(contextLen: 0), history: nil) } == .invalidArgument)
    }

    @Test func aTranscriptIsTakenOverWhereItDiffers() async throws {
        let session = try engine.session(options: SessionOptions(contextLen: 512), history: nil)
        let first = [Message(role: .system, content: "Be brief."), Message(role: .user, content: "Who repairs the tap?")]
        try session.setTurns(first)
        _ = try await session.generate(options: short).result()
        let answered = try session.messages()
        #expect(answered.count == 3)
        try session.setTurns(answered + [Message(role: .user, content: "And the door?")])
        let result = try await session.generate(options: short).result()
        #expect(result.stats.cachedTokens > 0)
        try session.setTurns(first)
        #expect(try session.messages() == first)
        try session.setTurns([])
        #expect(try session.messages() == [])
    }

    /// `REFRAIN_LEAK_ROUNDS=10000` is the long form: generations of each of the eight threads.
    @Test func eightThreadsLeaveNoMemoryBehind() throws {
        let rounds = ProcessInfo.processInfo.environment["REFRAIN_LEAK_ROUNDS"].flatMap(Int.init) ?? 150
        func generate(_ rounds: Int) {
            let engine = engine
            DispatchQueue.concurrentPerform(iterations: 8) { number in
                for round in 0..<rounds {
                    let options = SessionOptions(contextLen: 128, history: false)
                    guard let session = try? engine.session(options: options, history: nil) else {
                        Issue.record("no session")
                        return
                    }
                    try? session.append(role: .user, content: "Who repairs the tap?")
                    let job = try? session.generate(options: short)
                    // Some are left to themselves.
                    if (number + round) % 3 > 0 { _ = try? job?.wait() }
                }
            }
        }
        generate(max(20, rounds / 10))
        let before = residentBytes()
        generate(rounds)
        let after = residentBytes()
        print("8 threads × \(rounds) generations: resident memory from \(before >> 10) to \(after >> 10) KiB")
        #expect(after - before < 48 << 20)
    }

    private func residentBytes() -> Int {
        guard let statm = try? String(contentsOfFile: "/proc/self/statm", encoding: .utf8) else { return 0 }
        return Int(statm.split(separator: " ")[1]).map { $0 * 4096 } ?? 0
    }
}
