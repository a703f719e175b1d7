//! Flags of the linker for the library that other languages load.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Pages of 16 KB, as Android 15 may have them. Linux has the same flag, so that bindings/kotlin/aar checks it without the NDK.
    let system = std::env::var("CARGO_CFG_TARGET_OS").unwrap_or_default();
    if matches!(system.as_str(), "android" | "linux") {
        println!("cargo::rustc-link-arg-cdylib=-Wl,-z,max-page-size=16384");
    }
    // Half a megabyte of relocations becomes a tenth. Android has read this form since version 6.
    if system == "android" {
        println!("cargo::rustc-link-arg-cdylib=-Wl,--pack-dyn-relocs=android");
    }
}
