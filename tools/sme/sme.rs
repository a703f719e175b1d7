//! A prototype of the prompts' products with SME's outer products, on this project's panels: are the bits those of the oracle, and how
//! many instructions does it take? `tools/sme/sme` compiles and runs it under qemu; the library has no such kernel.
//!
//! A line of a panel has four columns of 16 outputs. With registers of 512 bits that is an operand of `smopa`, and the same four columns
//! of 16 activation rows are the other one: eight outer products are a block of 32 columns of 16 × 16 outputs. Its sums are exact and
//! leave `ZA` row by row to be scaled, because each block has scales of its own. Codes of 4 bits have columns 0..16 of a block in the low
//! halves of their bytes and the others in the high halves.

use std::arch::global_asm;

const ROWS: usize = 16;
const OUTPUTS: usize = 16;
const LINE: usize = 64;
/// Columns of a line.
const GROUP: usize = LINE / OUTPUTS;
const BLOCK: usize = 32;

// x0: lines of codes; x1: 16 scales of outputs per block; x2: 8 lines of activations per block; x3: 16 scales of rows per block; x4: blocks;
// x5: 16 × 16 outputs. `z16`..`z31` are the outputs of a row each, `z0` the scales of the outputs.
macro_rules! kernel {
    ($name:literal, $codes:literal, $bytes:literal) => {
        global_asm!(
            ".arch_extension sme",
            concat!(".globl ", $name),
            concat!($name, ":"),
            "stp d8, d9, [sp, #-64]!",
            "stp d10, d11, [sp, #16]",
            "stp d12, d13, [sp, #32]",
            "stp d14, d15, [sp, #48]",
            "smstart",
            "ptrue p0.b",
            ".irp n,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
            "mov z\\n\\().s, #0",
            ".endr",
            "2:",
            // The first instruction of a block; `sme` counts from here to the branch.
            "zero {{za0.s}}",
            $codes,
            "ld1w {{z0.s}}, p0/z, [x1]",
            "mov w12, #0",
            ".irp n,0,4,8,12",
            ".irp m,0,1,2,3",
            "mov z1.s, p0/m, za0h.s[w12, \\m]",
            "scvtf z1.s, p0/m, z1.s",
            "ld1rw {{z2.s}}, p0/z, [x3, #(\\n + \\m) * 4]",
            "fmul z2.s, z2.s, z0.s",
            ".if \\n + \\m == 0; fmla z16.s, p0/m, z1.s, z2.s; .endif",
            ".if \\n + \\m == 1; fmla z17.s, p0/m, z1.s, z2.s; .endif",
            ".if \\n + \\m == 2; fmla z18.s, p0/m, z1.s, z2.s; .endif",
            ".if \\n + \\m == 3; fmla z19.s, p0/m, z1.s, z2.s; .endif",
            ".if \\n + \\m == 4; fmla z20.s, p0/m, z1.s, z2.s; .endif",
            ".if \\n + \\m == 5; fmla z21.s, p0/m, z1.s, z2.s; .endif",
            ".if \\n + \\m == 6; fmla z22.s, p0/m, z1.s, z2.s; .endif",
            ".if \\n + \\m == 7; fmla z23.s, p0/m, z1.s, z2.s; .endif",
            ".if \\n + \\m == 8; fmla z24.s, p0/m, z1.s, z2.s; .endif",
            ".if \\n + \\m == 9; fmla z25.s, p0/m, z1.s, z2.s; .endif",
            ".if \\n + \\m == 10; fmla z26.s, p0/m, z1.s, z2.s; .endif",
            ".if \\n + \\m == 11; fmla z27.s, p0/m, z1.s, z2.s; .endif",
            ".if \\n + \\m == 12; fmla z28.s, p0/m, z1.s, z2.s; .endif",
            ".if \\n + \\m == 13; fmla z29.s, p0/m, z1.s, z2.s; .endif",
            ".if \\n + \\m == 14; fmla z30.s, p0/m, z1.s, z2.s; .endif",
            ".if \\n + \\m == 15; fmla z31.s, p0/m, z1.s, z2.s; .endif",
            ".endr",
            "add w12, w12, #4",
            ".endr",
            concat!("add x0, x0, #", $bytes),
            "add x1, x1, #64",
            "add x2, x2, #512",
            "add x3, x3, #64",
            "subs x4, x4, #1",
            "b.ne 2b",
            ".irp n,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
            "st1w {{z\\n\\().s}}, p0, [x5]",
            "add x5, x5, #64",
            ".endr",
            "smstop",
            "ldp d10, d11, [sp, #16]",
            "ldp d12, d13, [sp, #32]",
            "ldp d14, d15, [sp, #48]",
            "ldp d8, d9, [sp], #64",
            "ret",
        );
    };
}

// The bias of 128 is the uppermost bit.
kernel!(
    "sme_q8_0",
    ".irp n,0,1,2,3,4,5,6,7
     ld1b {{z3.b}}, p0/z, [x0, #\\n, mul vl]
     ld1b {{z4.b}}, p0/z, [x2, #\\n, mul vl]
     eor z3.b, z3.b, #0x80
     smopa za0.s, p0/m, p0/m, z4.b, z3.b
     .endr",
    "512"
);
kernel!(
    "sme_q4_0",
    ".irp n,0,1,2,3
     ld1b {{z3.b}}, p0/z, [x0, #\\n, mul vl]
     ld1b {{z4.b}}, p0/z, [x2, #\\n, mul vl]
     ld1b {{z5.b}}, p0/z, [x2, #\\n + 4, mul vl]
     lsr z6.b, z3.b, #4
     and z3.b, z3.b, #0x0f
     sub z6.b, z6.b, #8
     sub z3.b, z3.b, #8
     smopa za0.s, p0/m, p0/m, z4.b, z3.b
     smopa za0.s, p0/m, p0/m, z5.b, z6.b
     .endr",
    "256"
);

type Kernel = unsafe extern "C" fn(*const u8, *const f32, *const i8, *const f32, usize, *mut f32);

unsafe extern "C" {
    fn sme_q8_0(codes: *const u8, scales: *const f32, rows: *const i8, row_scales: *const f32, n_blocks: usize, out: *mut f32);
    fn sme_q4_0(codes: *const u8, scales: *const f32, rows: *const i8, row_scales: *const f32, n_blocks: usize, out: *mut f32);
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as u32
    }

    fn scale(&mut self) -> f32 {
        (self.next() % 20_000) as f32 / 1e6 - 0.01
    }
}

/// The first kernel's outputs beside those of the formula of `crates/kernels/src/matmul.rs`.
fn check(kernel: Kernel, bits: u32, n_blocks: usize, random: &mut Random) {
    let n_columns = n_blocks * BLOCK;
    let bias = 1 << (bits - 1);
    let weights: Vec<i32> = (0..OUTPUTS * n_columns).map(|_| (random.next() % (1 << bits)) as i32 - bias).collect();
    let activations: Vec<i32> = (0..ROWS * n_columns).map(|_| (random.next() % 255) as i32 - 127).collect();
    let scales: Vec<f32> = (0..OUTPUTS * n_blocks).map(|_| random.scale()).collect();
    let row_scales: Vec<f32> = (0..ROWS * n_blocks).map(|_| random.scale()).collect();

    let lines_of = |values: &[i32], offset: i32| -> Vec<u8> {
        let line = |group: usize| {
            (0..LINE).map(move |at| (at / GROUP * n_columns + group * GROUP + at % GROUP, offset))
        };
        (0..n_columns / GROUP).flat_map(line).map(|(at, offset)| (values[at] + offset) as u8).collect()
    };
    let rows: Vec<i8> = lines_of(&activations, 0).into_iter().map(|code| code as i8).collect();
    let mut codes = lines_of(&weights, bias);
    if bits == 4 {
        let half = BLOCK * OUTPUTS / 2;
        let join = |block: &[u8]| block[..half].iter().zip(&block[half..]).map(|(low, high)| low | high << 4).collect::<Vec<_>>();
        codes = codes.chunks(2 * half).flat_map(join).collect();
    }
    let mut found = [0.0f32; ROWS * OUTPUTS];
    // SAFETY: the lengths are those that the kernel reads and writes.
    unsafe { kernel(codes.as_ptr(), scales.as_ptr(), rows.as_ptr(), row_scales.as_ptr(), n_blocks, found.as_mut_ptr()) };

    for row in 0..ROWS {
        for output in 0..OUTPUTS {
            let mut sum = 0.0f32;
            for block in 0..n_blocks {
                let columns = block * BLOCK..(block + 1) * BLOCK;
                let dot: i32 = columns.map(|c| weights[output * n_columns + c] * activations[row * n_columns + c]).sum();
                sum = (dot as f32).mul_add(scales[block * OUTPUTS + output] * row_scales[block * ROWS + row], sum);
            }
            let found = found[row * OUTPUTS + output];
            assert_eq!(sum.to_bits(), found.to_bits(), "{bits} bits, row {row}, output {output}: {sum} and {found}");
        }
    }
}

fn main() {
    let mut random = Random(7);
    for n_blocks in [1, 2, 3, 48, 280] {
        check(sme_q8_0, 8, n_blocks, &mut random);
        check(sme_q4_0, 4, n_blocks, &mut random);
    }
    println!("all bits are those of the oracle");
}
