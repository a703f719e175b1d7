//! Flags of the linker for addons of Node.

fn main() {
    napi_build::setup();
}
