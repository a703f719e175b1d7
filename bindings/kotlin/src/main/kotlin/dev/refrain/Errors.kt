package dev.refrain

/** The facts of the error: code, kind, message, and as far as they are known file, field, offset, value and limit. */
public val RefrainException.info: ErrorInfo
    get() = when (this) {
        is RefrainException.Failed -> info
    }

/** What the error means for an app. Kinds never change; messages do. */
public val RefrainException.kind: ErrorKind
    get() = info.kind

/** The stable number of [kind], the same in every language. */
public val RefrainException.code: Int
    get() = info.code.toInt()

internal fun failed(kind: ErrorKind, message: String, offset: ULong? = null): RefrainException =
    RefrainException.Failed(
        ErrorInfo(
            code = kind.value,
            kind = kind,
            message = message,
            file = null,
            field = null,
            offset = offset,
            value = null,
            limit = null,
        ),
    )

/** The error of a call after `close()`. */
internal fun closed(name: String): RefrainException = failed(ErrorKind.CLOSED, "this $name is closed")

/** The error of a text with half a character: a surrogate without its other one. */
internal fun notText(text: CharSequence): RefrainException {
    var bytes = 0L
    var at = 0
    while (at < text.length) {
        val unit = text[at]
        when {
            unit.isHighSurrogate() && at + 1 < text.length && text[at + 1].isLowSurrogate() -> {
                bytes += 4
                at++
            }
            unit.isSurrogate() ->
                return failed(ErrorKind.NOT_UTF8, "the text has a lone surrogate at index $at", bytes.toULong())
            unit.code < 0x80 -> bytes += 1
            unit.code < 0x800 -> bytes += 2
            else -> bytes += 3
        }
        at++
    }
    return failed(ErrorKind.NOT_UTF8, "the text is not UTF-16")
}

/** An old native library beside new classes, or the other way round. */
internal fun otherLibrary(): LinkageError =
    UnsatisfiedLinkError("the native library is not that of version $VERSION of Refrain, which these classes need")

/** Binds functions of the library, all of which it must have. That it cannot be loaded is JNA's error. */
internal fun registered(register: () -> Unit) {
    try {
        register()
    } catch (error: UnsatisfiedLinkError) {
        throw if (error.message.orEmpty().contains("looking up function")) otherLibrary().apply { initCause(error) } else error
    }
}

/** @throws UnsatisfiedLinkError the native library has another version than the classes. */
internal fun checkVersion(found: String) {
    if (found != VERSION) throw otherLibrary()
}
