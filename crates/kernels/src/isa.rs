//! The instruction sets of this crate, and the choice among those of a CPU.

#[cfg(target_arch = "x86_64")]
use super::avx2;
#[cfg(target_arch = "x86_64")]
use super::avx512;
#[cfg(target_arch = "aarch64")]
use super::neon;
use super::scalar;
use super::simd::Work;
#[cfg(all(target_family = "wasm", target_feature = "simd128"))]
use super::simd128::Simd128;

/// An instruction set with kernels.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum IsaKind {
    /// Portable code: the oracle, and the fallback.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// AVX2 with AVX-VNNI.
    AvxVnni,
    /// x86-64 with AVX-512 F, BW, VL, DQ and VNNI.
    Avx512,
    /// AArch64 with NEON.
    Neon,
    /// NEON with dot products (ARMv8.2).
    NeonDot,
    /// NEON with matrix products of bytes (ARMv8.6).
    NeonI8mm,
    /// WebAssembly with SIMD128.
    Simd128,
}

impl IsaKind {
    /// All kinds, slowest first within each architecture, whether or not this machine supports them.
    pub const ALL: &[IsaKind] = &[
        IsaKind::Scalar,
        IsaKind::Avx2,
        IsaKind::AvxVnni,
        IsaKind::Avx512,
        IsaKind::Neon,
        IsaKind::NeonDot,
        IsaKind::NeonI8mm,
        IsaKind::Simd128,
    ];

    /// The name used in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            IsaKind::Scalar => "scalar",
            IsaKind::Avx2 => "avx2",
            IsaKind::AvxVnni => "avx-vnni",
            IsaKind::Avx512 => "avx512",
            IsaKind::Neon => "neon",
            IsaKind::NeonDot => "neon-dot",
            IsaKind::NeonI8mm => "neon-i8mm",
            IsaKind::Simd128 => "simd128",
        }
    }
}

impl std::fmt::Display for IsaKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Why the fastest kernels of this CPU are the scalar ones, which compute the same output several times as slowly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum KernelsNotice {
    /// An x86-64 CPU without the extensions of x86-64-v3 that the kernels need: older than about 2013, an Atom or a
    /// Celeron, or a virtual machine that hides them.
    #[error("this CPU has no {missing}; the scalar kernels run, several times as slowly")]
    NoAvx2 {
        /// The first missing extension: `AVX2`, `FMA` or `F16C`.
        missing: &'static str,
    },
    /// A module of WebAssembly that was built without `-C target-feature=+simd128`.
    #[error("this module was built without SIMD128; the scalar kernels run, several times as slowly")]
    NoSimd128,
    /// There are no kernels for this architecture.
    #[error("there are no kernels for {arch}; the scalar kernels run, several times as slowly")]
    Architecture {
        /// Its name, as in [`std::env::consts::ARCH`].
        arch: &'static str,
    },
}

impl KernelsNotice {
    /// The notice of this machine; `None` if there are kernels for its instruction set.
    pub fn of_this_machine() -> Option<Self> {
        Kernels::notice()
    }

    /// A name for logs and interfaces: `no_avx2`, `no_simd128` or `no_kernels`.
    pub fn code(self) -> &'static str {
        match self {
            Self::NoAvx2 { .. } => "no_avx2",
            Self::NoSimd128 => "no_simd128",
            Self::Architecture { .. } => "no_kernels",
        }
    }

    /// The notice of a CPU that has these extensions and whose fastest instruction set is `isa`.
    fn of(isa: IsaKind, arch: &'static str, extensions: &[(&'static str, bool)]) -> Option<Self> {
        let missing = extensions.iter().find(|extension| !extension.1).map(|extension| extension.0);
        match (isa, missing) {
            (IsaKind::Scalar, Some(missing)) => Some(Self::NoAvx2 { missing }),
            (IsaKind::Scalar, None) if arch == "wasm32" => Some(Self::NoSimd128),
            (IsaKind::Scalar, None) => Some(Self::Architecture { arch }),
            _ => None,
        }
    }
}

/// An instruction set that this CPU supports; the constructors check it.
///
/// All instruction sets compute the same bits and differ only in speed.
#[derive(Clone, Copy, Debug)]
pub struct Kernels(Choice);

#[derive(Clone, Copy, Debug)]
enum Choice {
    Scalar(scalar::Scalar),
    #[cfg(target_arch = "x86_64")]
    Avx2(avx2::Avx2<false>),
    #[cfg(target_arch = "x86_64")]
    AvxVnni(avx2::Avx2<true>),
    #[cfg(target_arch = "x86_64")]
    Avx512(avx512::Avx512),
    #[cfg(target_arch = "aarch64")]
    Neon(neon::Neon<{ neon::PLAIN }>),
    #[cfg(target_arch = "aarch64")]
    NeonDot(neon::Neon<{ neon::DOT }>),
    #[cfg(target_arch = "aarch64")]
    NeonI8mm(neon::Neon<{ neon::I8MM }>),
    #[cfg(all(target_family = "wasm", target_feature = "simd128"))]
    Simd128(Simd128),
}

impl Kernels {
    /// The fastest instruction set of this CPU.
    pub fn detect() -> Self {
        let fastest = IsaKind::ALL.iter().copied().rev().find_map(Self::with_isa);
        fastest.unwrap_or(Kernels(Choice::Scalar(scalar::Scalar)))
    }

    /// Why [`Kernels::detect`] gives the scalar kernels; `None` if it gives others.
    pub fn notice() -> Option<KernelsNotice> {
        #[cfg(target_arch = "x86_64")]
        let extensions = [
            ("AVX2", is_x86_feature_detected!("avx2")),
            ("FMA", is_x86_feature_detected!("fma")),
            ("F16C", is_x86_feature_detected!("f16c")),
        ];
        #[cfg(not(target_arch = "x86_64"))]
        let extensions = [];
        KernelsNotice::of(Self::detect().isa(), std::env::consts::ARCH, &extensions)
    }

    /// The given instruction set; `None` if this CPU does not support it.
    pub fn with_isa(isa: IsaKind) -> Option<Self> {
        match isa {
            IsaKind::Scalar => Some(Kernels(Choice::Scalar(scalar::Scalar))),
            #[cfg(target_arch = "x86_64")]
            IsaKind::Avx2 => avx2::Avx2::new().map(|isa| Kernels(Choice::Avx2(isa))),
            #[cfg(target_arch = "x86_64")]
            IsaKind::AvxVnni => avx2::Avx2::new().map(|isa| Kernels(Choice::AvxVnni(isa))),
            #[cfg(target_arch = "x86_64")]
            IsaKind::Avx512 => avx512::Avx512::new().map(|isa| Kernels(Choice::Avx512(isa))),
            #[cfg(target_arch = "aarch64")]
            IsaKind::Neon => neon::Neon::new().map(|isa| Kernels(Choice::Neon(isa))),
            #[cfg(target_arch = "aarch64")]
            IsaKind::NeonDot => neon::Neon::new().map(|isa| Kernels(Choice::NeonDot(isa))),
            #[cfg(target_arch = "aarch64")]
            IsaKind::NeonI8mm => neon::Neon::new().map(|isa| Kernels(Choice::NeonI8mm(isa))),
            #[cfg(all(target_family = "wasm", target_feature = "simd128"))]
            IsaKind::Simd128 => Some(Kernels(Choice::Simd128(Simd128))),
            _ => None,
        }
    }

    /// The instruction set.
    pub fn isa(self) -> IsaKind {
        match self.0 {
            Choice::Scalar(_) => IsaKind::Scalar,
            #[cfg(target_arch = "x86_64")]
            Choice::Avx2(_) => IsaKind::Avx2,
            #[cfg(target_arch = "x86_64")]
            Choice::AvxVnni(_) => IsaKind::AvxVnni,
            #[cfg(target_arch = "x86_64")]
            Choice::Avx512(_) => IsaKind::Avx512,
            #[cfg(target_arch = "aarch64")]
            Choice::Neon(_) => IsaKind::Neon,
            #[cfg(target_arch = "aarch64")]
            Choice::NeonDot(_) => IsaKind::NeonDot,
            #[cfg(target_arch = "aarch64")]
            Choice::NeonI8mm(_) => IsaKind::NeonI8mm,
            #[cfg(all(target_family = "wasm", target_feature = "simd128"))]
            Choice::Simd128(_) => IsaKind::Simd128,
        }
    }

    /// Every instruction set of this CPU, slowest first.
    pub fn available() -> Vec<Self> {
        IsaKind::ALL.iter().copied().filter_map(Self::with_isa).collect()
    }

    /// Runs `work` compiled for this instruction set. Instruction sets that differ in products of codes alone share its code.
    pub(super) fn run<W: Work>(self, work: W) -> W::Output {
        match self.0 {
            Choice::Scalar(isa) => work.run(isa),
            #[cfg(target_arch = "x86_64")]
            Choice::Avx2(isa) => isa.run(work),
            #[cfg(target_arch = "x86_64")]
            Choice::AvxVnni(isa) => isa.plain().run(work),
            #[cfg(target_arch = "x86_64")]
            Choice::Avx512(isa) => isa.run(work),
            #[cfg(target_arch = "aarch64")]
            Choice::Neon(isa) => isa.run(work),
            #[cfg(target_arch = "aarch64")]
            Choice::NeonDot(isa) => isa.plain().run(work),
            #[cfg(target_arch = "aarch64")]
            Choice::NeonI8mm(isa) => isa.plain().run(work),
            #[cfg(all(target_family = "wasm", target_feature = "simd128"))]
            Choice::Simd128(isa) => isa.run(work),
        }
    }

    /// The same for work with products of codes, or with the order of rows in which they are read.
    pub(super) fn run_codes<W: Work>(self, work: W) -> W::Output {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Choice::AvxVnni(isa) => isa.run(work),
            #[cfg(target_arch = "aarch64")]
            Choice::NeonDot(isa) => isa.run(work),
            #[cfg(target_arch = "aarch64")]
            Choice::NeonI8mm(isa) => isa.run(work),
            _ => self.run(work),
        }
    }
}

#[cfg(test)]
mod notice_tests {
    use super::*;

    #[test]
    fn a_narrow_cpu_is_told() {
        let of = |isa, has: [bool; 3]| {
            let extensions = ["AVX2", "FMA", "F16C"];
            let extensions: Vec<_> = extensions.into_iter().zip(has).collect();
            KernelsNotice::of(isa, "x86_64", &extensions).map(|notice| notice.to_string())
        };
        let notice = of(IsaKind::Scalar, [false, false, true]).unwrap();
        assert_eq!(notice, "this CPU has no AVX2; the scalar kernels run, several times as slowly");
        assert!(of(IsaKind::Scalar, [true, true, false]).unwrap().contains("F16C"));
        assert_eq!(of(IsaKind::Avx2, [true; 3]), None);
        let other = KernelsNotice::of(IsaKind::Scalar, "riscv64", &[]).unwrap();
        assert!(other.to_string().contains("riscv64"));
        assert_eq!(KernelsNotice::of(IsaKind::Scalar, "wasm32", &[]), Some(KernelsNotice::NoSimd128));
        assert_eq!(Kernels::notice().is_some(), Kernels::detect().isa() == IsaKind::Scalar);
    }
}
