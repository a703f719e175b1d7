package dev.refrain

import com.sun.jna.NativeLibrary
import java.nio.file.Files
import kotlin.io.path.writeBytes
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertTrue
import org.junit.jupiter.api.Assumptions.assumeTrue
import org.junit.jupiter.api.Test

/** A native library that the classes do not belong to is refused before its first use. */
class LibraryTest {
    @Test
    fun `the version is that of the library, and no other`() {
        assertEquals(VERSION, libraryVersion())
        checkVersion(VERSION)
        assertEquals(otherLibrary().message, assertFailsWith<UnsatisfiedLinkError> { checkVersion("$VERSION.1") }.message)
    }

    /** A function of the library is named otherwise. */
    @Test
    fun `a library without a function is refused`() {
        val name = "uniffi_refrain_ffi_checksum_func_library_version".toByteArray()
        refused { bytes -> places(bytes, name).onEach { bytes[it] = 'x'.code.toByte() } }
    }

    /** A function of the library has another signature: the number that the library returns for it is changed in its code. */
    @Test
    fun `a library with another function is refused`() {
        assumeTrue(System.getProperty("os.arch") == "amd64", "the bytes are those of x86-64")
        val number = NativeLibrary.getInstance("refrain_ffi").getFunction("uniffi_refrain_ffi_checksum_func_library_version")
            .invokeInt(emptyArray()) and 0xFFFF
        // mov ax, number; ret
        val code = byteArrayOf(0x66, 0xB8.toByte(), number.toByte(), (number shr 8).toByte(), 0xC3.toByte())
        refused { bytes -> places(bytes, code).onEach { bytes[it + 2] = (number xor 1).toByte() } }
    }

    private fun places(bytes: ByteArray, part: ByteArray): List<Int> =
        (0..bytes.size - part.size).filter { at -> part.indices.all { bytes[at + it] == part[it] } }

    private fun refused(change: (ByteArray) -> List<Int>) {
        val bytes = NativeLibrary.getInstance("refrain_ffi").file.readBytes()
        assertTrue(change(bytes).isNotEmpty(), "the library has other bytes")
        val folder = Files.createTempDirectory("refrain-other")
        try {
            folder.resolve(System.mapLibraryName("refrain_ffi")).writeBytes(bytes)
            ends("other", "-Djna.library.path=$folder")
        } finally {
            folder.toFile().deleteRecursively()
        }
    }
}
