//! Writes the Kotlin and Swift of the crate from its compiled library. `bindings/core/README.md` has the commands.

fn main() {
    uniffi::uniffi_bindgen_main();
}
