// Apple's sessions over this engine. Written against the published interface of iOS 27; the project's own checks run on Linux, where this
// file is empty.
#if canImport(FoundationModels) && compiler(>=6.4)
import Foundation
import FoundationModels

/// An engine as a model of the Foundation Models framework: `LanguageModelSession(model: RefrainLanguageModel(engine: engine))`.
///
/// Text, streaming and guided generation work. Tools and images are not declared, so the framework refuses them.
@available(iOS 27.0, macOS 27.0, visionOS 27.0, *)
public struct RefrainLanguageModel: LanguageModel {
    public typealias Executor = RefrainExecutor

    public let executorConfiguration: RefrainExecutor.Configuration

    public var capabilities: LanguageModelCapabilities { LanguageModelCapabilities([.guidedGeneration]) }

    /// - Parameters:
    ///   - engine: A loaded model, shared by any number of sessions.
    ///   - options: Options of the engine's session. Instructions of the framework's session are its system turn.
    public init(engine: Engine, options: SessionOptions = SessionOptions()) {
        executorConfiguration = RefrainExecutor.Configuration(engine: engine, options: options)
    }
}

/// Answers the requests of one `LanguageModelSession`. Its KV cache lives as long as the session.
@available(iOS 27.0, macOS 27.0, visionOS 27.0, *)
public final class RefrainExecutor: LanguageModelExecutor {
    public typealias Model = RefrainLanguageModel

    /// What an executor is made from: executors of the same engine and options are the same.
    public struct Configuration: Hashable, Sendable {
        let engine: Engine
        let options: SessionOptions

        public static func == (left: Self, right: Self) -> Bool {
            left.engine === right.engine && left.options == right.options
        }

        public func hash(into hasher: inout Hasher) {
            hasher.combine(ObjectIdentifier(engine))
            hasher.combine(options)
        }
    }

    private let session: Session

    public init(configuration: Configuration) throws {
        session = try configuration.engine.session(options: configuration.options, history: nil)
    }

    /// Computes the transcript's prompt.
    public func prewarm(model: RefrainLanguageModel, transcript: Transcript) {
        let session = session
        guard let turns = try? turns(of: transcript) else { return }
        Task { try await jobEvents { try session.setTurns(turns); return try session.prefill() }.result() }
    }

    public func respond(
        to request: LanguageModelExecutorGenerationRequest, model: RefrainLanguageModel,
        streamingInto channel: LanguageModelExecutorGenerationChannel
    ) async throws {
        let turns = try turns(of: request.transcript)
        let options = try options(of: request)
        let session = session
        let response = UUID().uuidString
        let reasoning = UUID().uuidString
        let events = jobEvents {
            try session.setTurns(turns)
            return try session.generate(options: options)
        }
        do {
            for try await event in events {
                switch event {
                case .text(let text, .answer, _):
                    await channel.send(.response(entryID: response, action: .appendText(text, tokenCount: 1)))
                case .text(let text, .reasoning, _):
                    await channel.send(.reasoning(entryID: reasoning, action: .appendText(text, tokenCount: 1)))
                case .done(let result):
                    let stats = result.stats
                    await channel.send(
                        .response(
                            entryID: response,
                            action: .updateUsage(
                                input: .init(
                                    totalTokenCount: Int(stats.promptTokens), cachedTokenCount: Int(stats.cachedTokens)),
                                output: .init(totalTokenCount: Int(stats.tokens), reasoningTokenCount: 0))))
                default:
                    break
                }
            }
        } catch let error as RefrainError where error.kind == .cancelled {
            throw CancellationError()
        }
        try Task.checkCancellation()
    }

    private func options(of request: LanguageModelExecutorGenerationRequest) throws -> GenerateOptions {
        let given = request.generationOptions
        var schema: String?
        if let asked = request.schema {
            schema = String(decoding: try JSONEncoder().encode(asked), as: UTF8.self)
        }
        let isGreedy = given.samplingMode == .greedy
        return GenerateOptions(
            maxTokens: given.maximumResponseTokens.map { UInt32(clamping: $0) },
            temperature: isGreedy ? 0 : given.temperature.map(Float.init),
            jsonSchema: schema)
    }

    /// The transcript as turns.
    private func turns(of transcript: Transcript) throws -> [Message] {
        try transcript.compactMap { entry in
            switch entry {
            case .instructions(let instructions):
                Message(role: .system, content: try text(of: instructions.segments, in: entry))
            case .prompt(let prompt): Message(role: .user, content: try text(of: prompt.segments, in: entry))
            case .response(let response): Message(role: .assistant, content: try text(of: response.segments, in: entry))
            // (The model's template writes reasoning of earlier turns as it was trained: not at all.)
            default: nil
            }
        }
    }

    private func text(of segments: [Transcript.Segment], in entry: Transcript.Entry) throws -> String {
        try segments.map { segment in
            switch segment {
            case .text(let text): text.content
            case .structure(let structure): structure.content.jsonString
            default:
                throw LanguageModelError.unsupportedTranscriptContent(
                    .init(unsupportedContent: [entry], debugDescription: "Refrain reads text only."))
            }
        }.joined(separator: "\n")
    }
}
#endif
