import Foundation

extension RefrainError: LocalizedError {
    /// The facts: code, kind, message, and as far as they are known file, field, offset, value and limit.
    public var info: ErrorInfo {
        switch self {
        case .Failed(let info): info
        }
    }

    /// What the error means for an app. Kinds never change; messages do.
    public var kind: ErrorKind { info.kind }

    /// The stable number of the kind, the same in every language.
    public var code: Int { Int(info.code) }

    /// What has happened, with the numbers, in English.
    public var errorDescription: String? { info.message }
}
