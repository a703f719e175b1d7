// swift-tools-version: 6.0
// The package as bindings/swift/generate assembles it: with the Swift and the header that UniFFI writes, over the library of this system
// (REFRAIN_LIBRARIES names its folder). bindings/swift/make-xcframework writes the manifest of the published package.
import Foundation
import PackageDescription

let libraries = ProcessInfo.processInfo.environment["REFRAIN_LIBRARIES"] ?? "libraries"
let linked: [LinkerSetting] = [
    .unsafeFlags(["-L\(libraries)", "-Xlinker", "-rpath", "-Xlinker", libraries]), .linkedLibrary("refrain_ffi"),
]

let package = Package(
    name: "Refrain",
    platforms: [.iOS(.v15), .macOS(.v12)],
    products: [.library(name: "Refrain", targets: ["Refrain"])],
    targets: [
        .systemLibrary(name: "refrainFFI"),
        .target(name: "Refrain", dependencies: ["refrainFFI"], linkerSettings: linked),
        .executableTarget(name: "Overhead", dependencies: ["Refrain"]),
        .executableTarget(name: "Guide", dependencies: ["Refrain"]),
        .testTarget(name: "RefrainTests", dependencies: ["Refrain"]),
    ]
)
