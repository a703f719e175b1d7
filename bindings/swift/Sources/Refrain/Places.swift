extension Place {
    /// The place in a text, if the engine's units are ``Units/utf8``, the default; `nil` if the text has no such place.
    public func range(in text: String) -> Range<String.Index>? {
        range(in: text, of: text.utf8)
    }

    /// The place in a text, if the engine's units are ``Units/utf16``, those of `NSString` and `NSRange`.
    public func rangeOfUTF16(in text: String) -> Range<String.Index>? {
        range(in: text, of: text.utf16)
    }

    private func range<View: BidirectionalCollection>(in text: String, of view: View) -> Range<String.Index>?
    where View.Index == String.Index {
        guard let first = Int(exactly: start), let count = Int(exactly: end).map({ $0 - first }), count >= 0,
            let lower = view.index(view.startIndex, offsetBy: first, limitedBy: view.endIndex),
            let upper = view.index(lower, offsetBy: count, limitedBy: view.endIndex),
            let from = lower.samePosition(in: text.unicodeScalars), let to = upper.samePosition(in: text.unicodeScalars)
        else { return nil }
        return from..<to
    }
}
