import Dispatch
import Foundation

/// The events of a job, in order; ``Event/done(result:)`` is the last one. What it throws is a ``RefrainError``.
public typealias Events = AsyncThrowingStream<Event, any Error>

/// Starts a job and gives its events: `for try await event in jobEvents({ try session.generate(options: options) })`.
///
/// Starting may take long (a search, the layout of a prompt), and runs on a thread of the system's queue, never in the pool of Swift's
/// tasks. When the task that reads is cancelled, or drops the events, the job is cancelled, and ends before the model's next layer.
///
/// - Parameter start: Makes the job. What it throws is thrown by the events.
public func jobEvents(_ start: @escaping @Sendable () throws -> Job) -> Events {
    Events { continuation in
        let running = Running()
        continuation.onTermination = { reason in
            if case .cancelled = reason { running.cancel() }
        }
        DispatchQueue.global(qos: .userInitiated).async {
            do {
                let job = try start()
                running.hold(job)
                try job.listen(listener: Forwarder(continuation, job: job))
            } catch {
                continuation.finish(throwing: error)
            }
        }
    }
}

extension Job {
    /// The events of the job. A job has one reader at a time: for a second one, the events throw ``ErrorKind/busy``, and
    /// ``ErrorKind/wrongState`` after the last event.
    ///
    /// Cancelling the task that reads cancels the job. The stream then ends without an error, as Swift's streams do: ask
    /// `Task.isCancelled`. A job that was cancelled by ``cancel()`` or shut down throws ``ErrorKind/cancelled``.
    public func events() -> Events {
        Events { continuation in
            continuation.onTermination = { [weak self] reason in
                if case .cancelled = reason { self?.cancel() }
            }
            do {
                try listen(listener: Forwarder(continuation, job: nil))
            } catch {
                continuation.finish(throwing: error)
            }
        }
    }

    /// The result of the job. It takes the events; ``wait()`` takes none. Cancelling the task cancels the job and throws `CancellationError`.
    ///
    /// - Throws: ``RefrainError``, `CancellationError`.
    public func result() async throws -> JobResult {
        try await events().result()
    }
}

extension AsyncSequence where Element == Event {
    /// Takes all events and gives the result.
    ///
    /// - Throws: What the events throw; `CancellationError` if they ended without a result.
    public func result() async throws -> JobResult {
        for try await event in self {
            if case .done(let result) = event { return result }
        }
        throw CancellationError()
    }

    /// The pieces of the answer as they come: whole characters, without the reasoning.
    public func text() -> AsyncCompactMapSequence<Self, String> {
        compactMap { event in
            if case .text(let text, .answer, _) = event { text } else { nil }
        }
    }
}

extension Engine {
    /// Loads a model on a thread of the system's queue. Loading cannot be stopped.
    ///
    /// - Parameters:
    ///   - options: The file, threads, and the limit of memory in bytes.
    ///   - progress: Bytes that are read, and all of them; called on the loading thread, at most once for each percent.
    /// - Throws: ``RefrainError``, as ``open(options:listener:)``.
    public static func load(
        _ options: EngineOptions, progress: (@Sendable (_ done: UInt64, _ total: UInt64) -> Void)? = nil
    ) async throws -> Engine {
        try await onQueue { try open(options: options, listener: progress.map(Progress.init)) }
    }
}

/// Runs what may wait on a thread of the system's queue: a search, an update, opening an assistant.
///
/// Swift's tasks share few threads, which must not wait: `let hits = try await onQueue { try notes.search(request: request) }`.
public func onQueue<Value: Sendable>(_ work: @escaping @Sendable () throws -> Value) async throws -> Value {
    try await withCheckedThrowingContinuation { continuation in
        DispatchQueue.global(qos: .userInitiated).async {
            continuation.resume(with: Result(catching: work))
        }
    }
}

/// The job of a stream, which may be cancelled before it is made.
private final class Running: @unchecked Sendable {
    private let lock = NSLock()
    private var job: Job?
    private var isCancelled = false

    func hold(_ made: Job) {
        lock.lock()
        defer { lock.unlock() }
        job = made
        if isCancelled { made.cancel() }
    }

    func cancel() {
        lock.lock()
        defer { lock.unlock() }
        isCancelled = true
        job?.cancel()
        job = nil
    }
}

/// Gives the batches of a job to a stream. It keeps the job, if it has one, until the last event.
private final class Forwarder: EventListener, @unchecked Sendable {
    private let continuation: Events.Continuation
    private var job: Job?

    init(_ continuation: Events.Continuation, job: Job?) {
        self.continuation = continuation
        self.job = job
    }

    // (One call at a time.)
    func onEvents(events: [Event]) -> Bool {
        for event in events {
            switch event {
            case .done:
                continuation.yield(event)
                continuation.finish()
                job = nil
            case .failed(let error):
                continuation.finish(throwing: RefrainError.Failed(info: error))
                job = nil
            default:
                // (After the end of the reader, nothing: the job is being cancelled.)
                continuation.yield(event)
            }
        }
        return true
    }
}

private final class Progress: EventListener {
    private let show: @Sendable (UInt64, UInt64) -> Void

    init(_ show: @escaping @Sendable (UInt64, UInt64) -> Void) {
        self.show = show
    }

    func onEvents(events: [Event]) -> Bool {
        for case .progress(_, let done, let total) in events { show(done, total) }
        return true
    }
}
