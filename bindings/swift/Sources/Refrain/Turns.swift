extension Session {
    /// Makes the turns of the session those that are given: turns behind the shared beginning are taken back, and the rest is added. The
    /// keys and values of the shared beginning stay, so that an app which hands in whole transcripts pays for new text only.
    ///
    /// - Throws: ``RefrainError``, as ``append(role:content:)``.
    public func setTurns(_ turns: [Message]) throws {
        let old = try messages()
        let shared = zip(old, turns).prefix { $0 == $1 }.count
        for _ in shared..<old.count { _ = try pop() }
        for turn in turns[shared...] { try append(role: turn.role, content: turn.content) }
    }
}
