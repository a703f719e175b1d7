//! Loading holds parts of tensors beside the packed weights, as counted by the allocator, whatever the number of
//! threads and the container; and it loads the same weights.

use refrain::Quantize;
use refrain::checkpoint::{Checkpoint, PackedAccess};
use refrain::internals::kernels::BlockType;
use refrain::internals::model::packed::pack;
use refrain::internals::model::weights::LoadOptions;
use refrain::internals::model::{Model, packed::ModelIdentity};

use crate::common::Tiny;
use crate::{MEMORY, turn};

/// Matrices of 4 MiB in F32.
const TINY: Tiny = Tiny { hidden_dim: 1024, n_layers: 2, head_dim: 256, ..Tiny::DEFAULT };

/// What a thread holds: a part in file form (256 KiB, or a head of 256 rows of 4 KiB), and a row.
const THREAD_BYTES: usize = (1 << 20) + (64 << 10);
/// Norms, tables of tensors, and the bookkeeping of threads.
const OTHER_BYTES: usize = 1 << 20;

/// The peak while loading, without the weights that stay, and the identity of the weights.
fn load(checkpoint: &Checkpoint, options: LoadOptions<'_>) -> (usize, ModelIdentity) {
    MEMORY.reset_peak_usage();
    let before = MEMORY.current_usage();
    let model = Model::load(checkpoint, options).unwrap();
    let (peak, after) = (MEMORY.peak_usage(), MEMORY.current_usage());
    let kept = after - before;
    (peak - before - kept, model.identity())
}

#[test]
fn threads_hold_parts_of_tensors_only() {
    let _turn = turn();
    let folder = tempfile::tempdir().unwrap();
    for ty in [BlockType::F32, BlockType::BF16, BlockType::Q8_0] {
        let path = folder.path().join(format!("{ty}.gguf"));
        std::fs::write(&path, Tiny { ty, ..TINY }.gguf()).unwrap();
        let checkpoint = Checkpoint::open(&path).unwrap();
        let packed = folder.path().join(format!("{ty}.refrain"));
        pack(&checkpoint, &packed, LoadOptions::default()).unwrap();
        let packed = Checkpoint::open(&packed).unwrap();
        for quantize in [Quantize::Q8_0, Quantize::Q4_0, Quantize::Keep] {
            let mut identities = Vec::new();
            for n_threads in [1, 2, 5] {
                let options = LoadOptions { quantize, n_threads: Some(n_threads), ..LoadOptions::default() };
                let (peak, identity) = load(&checkpoint, options);
                let stated = n_threads * THREAD_BYTES + OTHER_BYTES;
                assert!(peak <= stated, "{ty}, {quantize:?}, {n_threads} threads: {peak} of {stated} bytes");
                identities.push(identity);
                if quantize == Quantize::Q8_0 {
                    let read = LoadOptions { packed_access: PackedAccess::Read, ..options };
                    let (peak, identity) = load(&packed, read);
                    assert!(peak <= OTHER_BYTES, "{ty}, packed, {n_threads} threads: {peak} bytes");
                    identities.push(identity);
                }
            }
            assert!(identities.windows(2).all(|pair| pair[0] == pair[1]), "{ty} {quantize:?}");
        }
    }
}

/// The file was shortened after its header was read.
#[test]
fn a_file_that_ends_early_is_an_error_on_any_thread() {
    let _turn = turn();
    let file = tempfile::NamedTempFile::new().unwrap();
    let bytes = TINY.gguf();
    for n_threads in [1, 4] {
        for left in [bytes.len() - 1, bytes.len() / 2] {
            std::fs::write(file.path(), &bytes).unwrap();
            let checkpoint = Checkpoint::open(file.path()).unwrap();
            std::fs::File::options().write(true).open(file.path()).unwrap().set_len(left as u64).unwrap();
            let options = LoadOptions { n_threads: Some(n_threads), ..LoadOptions::default() };
            let error = Model::load(&checkpoint, options).err().expect("bytes are missing").to_string();
            assert!(error.contains(&file.path().display().to_string()), "{error}");
        }
    }
}
