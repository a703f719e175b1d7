import Dispatch
import Foundation

/// Tells an engine what the device reports. Every report changes speed and memory, never a text. The calls take microseconds, except that
/// memory pressure frees memory; any thread may call them. After the engine was shut down, they do nothing.
///
/// On Apple's systems, ``DeviceMonitor`` makes the reports.
public struct DeviceReports: Sendable {
    private let engine: Engine

    public init(engine: Engine) {
        self.engine = engine
    }

    /// - Parameter rawValue: That of `ProcessInfo.ThermalState`, 0 (nominal) to 3 (critical).
    public func thermalState(rawValue: Int) {
        let states: [ThermalState] = [.nominal, .fair, .serious, .critical]
        report(DeviceState(thermal: states[min(max(rawValue, 0), 3)]))
    }

    /// - Parameter flags: The data of a memory-pressure source: `DISPATCH_MEMORYPRESSURE_NORMAL` (1), `WARN` (2), `CRITICAL` (4).
    public func memoryPressure(flags: UInt) {
        report(DeviceState(memory: memoryPressureFromIos(flags: UInt64(flags))))
    }

    /// - Parameter isLowPowerMode: `ProcessInfo.isLowPowerModeEnabled`.
    public func power(isLowPowerMode: Bool, isPluggedIn: Bool = false) {
        report(DeviceState(power: isLowPowerMode ? .saver : isPluggedIn ? .mains : .battery))
    }

    /// Cancels the engine's jobs, waits for their ends and writes histories: before the system suspends the process, which it ends if a
    /// file of a shared container is locked meanwhile. Sessions stay.
    ///
    /// - Returns: `nil` if the engine was shut down.
    /// - Throws: ``RefrainError``: a history cannot be written; the jobs are cancelled all the same.
    @discardableResult
    public func prepareToSuspend(seconds: Double = 2) async throws -> SuspendReport? {
        let ms = UInt32(min(max(seconds, 0), 3600) * 1000)
        let engine = engine
        return try await onQueue { try unlessClosed { try engine.prepareToSuspend(maxWaitMs: ms) } }
    }

    private func report(_ state: DeviceState) {
        // (No other error is possible: reports are no calls of listeners, and these objects are of this process.)
        _ = try? engine.setDeviceState(state: state)
    }
}

private func unlessClosed<Value>(_ call: () throws -> Value) throws -> Value? {
    do {
        return try call()
    } catch let error as RefrainError where error.kind == .closed || error.kind == .poisoned {
        return nil
    }
}

#if canImport(Darwin)
/// Registers for memory pressure, heat and power, and tells them an engine as long as it lives.
public final class DeviceMonitor: @unchecked Sendable {
    /// For what only the app knows, such as ``DeviceReports/prepareToSuspend(seconds:)``.
    public let reports: DeviceReports
    private let memory: any DispatchSourceMemoryPressure
    private var observers: [any NSObjectProtocol] = []

    public init(engine: Engine) {
        let reports = DeviceReports(engine: engine)
        self.reports = reports
        memory = DispatchSource.makeMemoryPressureSource(eventMask: [.normal, .warning, .critical], queue: .global(qos: .utility))
        memory.setEventHandler { [weak memory] in
            if let memory { reports.memoryPressure(flags: memory.data.rawValue) }
        }
        memory.resume()
        let center = NotificationCenter.default
        observers.append(
            center.addObserver(forName: ProcessInfo.thermalStateDidChangeNotification, object: nil, queue: nil) { _ in
                reports.thermalState(rawValue: ProcessInfo.processInfo.thermalState.rawValue)
            })
        observers.append(
            center.addObserver(forName: .NSProcessInfoPowerStateDidChange, object: nil, queue: nil) { _ in
                reports.power(isLowPowerMode: ProcessInfo.processInfo.isLowPowerModeEnabled)
            })
        reports.thermalState(rawValue: ProcessInfo.processInfo.thermalState.rawValue)
        reports.power(isLowPowerMode: ProcessInfo.processInfo.isLowPowerModeEnabled)
    }

    deinit {
        memory.cancel()
        observers.forEach(NotificationCenter.default.removeObserver)
    }
}
#endif
