import Foundation
import Testing

@testable import Refrain

/// Notes, tasks and the device.
@Suite struct NotesTests {
    @Test func anAnswerHasSources() async throws {
        let folders = try Folders()
        let notes = try Notes.open(options: NotesOptions(folder: folders.index))
        let update = try await jobEvents { try notes.add(paths: [folders.notes.path]) }.result().update
        #expect(update?.added == 2)
        let hits = try await onQueue { try notes.search(request: SearchRequest(text: "Who is repairing the tap?")) }
        let hit = try #require(hits.first)
        #expect(hit.title == "Kitchen")
        let word = try #require(hit.matched.first?.range(in: hit.snippet))
        #expect(hit.snippet[word].lowercased().contains("tap"))

        let engine = try makeEngine()
        let assistant = try engine.assistant(
            options: AssistantOptions(notes: folders.index, store: folders.store, session: SessionOptions(contextLen: 1024)))
        let request = TaskRequest.ask(AskRequest(question: "Who repairs the tap?"))
        let result = try await jobEvents { try assistant.start(request: request, options: GenerateOptions(maxTokens: 48)) }.result()
        #expect(result.sources.first?.title == "Kitchen")
        for span in result.copied {
            let source = try #require(result.sources.first { $0.number == span.source })
            let there = try #require(span.sourcePlace.range(in: source.text))
            let here = try #require(span.place.range(in: result.text))
            #expect(source.text[there] == result.text[here])
        }
        let unknown = TaskRequest.ask(AskRequest(question: "Which colour has the elephant of Borneo?"))
        #expect(await kind { _ = try await jobEvents { try assistant.start(request: unknown, options: short) }.result() } == .notInNotes)
        let conversation = try assistant.conversation(id: nil, turns: [])
        _ = try await jobEvents { try conversation.say(request: ChatRequest(text: "Hello"), options: short) }.result()
        #expect(try conversation.turns().map(\.role) == [.user, .assistant])
    }

    @Test(arguments: [Units.utf8, .utf16]) func placesAreThoseOfStrings(units: Units) async throws {
        let assistant = try makeEngine(units: units).assistant(options: AssistantOptions(session: SessionOptions(contextLen: 512)))
        let old = "🎉 The café opens on Monday."
        let request = TaskRequest.edit(EditRequest(text: old, instruction: "Change Monday to Tuesday."))
        let result = try await assistant.start(request: request, options: GenerateOptions(maxTokens: 48)).result()
        func text(_ place: Place, _ text: String) throws -> Substring {
            text[try #require(units == .utf8 ? place.range(in: text) : place.rangeOfUTF16(in: text))]
        }
        var new = ""
        for change in result.changes where change.kind != .delete { new += try text(change.new, result.text) }
        #expect(new == result.text)
        for change in result.changes where change.kind == .keep {
            #expect(try text(change.old, old) == text(change.new, result.text))
        }
        #expect(Place(start: 1, end: 2).range(in: "é") == nil)
        #expect(Place(start: 0, end: 1).rangeOfUTF16(in: "🎉") == nil)
        #expect(Place(start: 2, end: 1).range(in: "abc") == nil)
        #expect(Place(start: 0, end: .max).range(in: "abc") == nil)
    }

    @Test func reportsOfTheDeviceChangeNoText() async throws {
        let engine = try makeEngine()
        let reports = DeviceReports(engine: engine)
        var texts: Set<String> = []
        for state in -1...4 {
            reports.thermalState(rawValue: state)
            reports.memoryPressure(flags: [1, 2, 4, 1, 2, 4][state + 1])
            reports.power(isLowPowerMode: state > 1, isPluggedIn: state == 0)
            texts.insert(try await engine.asked().generate(options: short).result().text)
        }
        #expect(texts.count == 1)
        let session = try engine.asked()
        let running = try session.generate(options: long)
        #expect(try await reports.prepareToSuspend() == SuspendReport(cancelled: 1, running: 0))
        #expect(await kind { _ = try await running.result() } == .cancelled)
        try engine.shutdown()
        reports.memoryPressure(flags: 4)
        #expect(try await reports.prepareToSuspend() == nil)
    }
}
