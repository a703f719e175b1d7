//! Heads for multi-token prediction: the output equals plain decoding, bit for bit, whatever they draft, with resident and
//! streamed targets, and through forks, truncations, restored states and cancelled prefills. What is no head is refused.

mod common;
mod model_files;

use std::path::{Path, PathBuf};

use common::{
    Rng, Run, assert_cuts_agree, assert_turns_agree, fixtures, isa, notes, options, plain, random_prompt,
    run, run_in, samplings,
};
use model_files::hf::HfModel;
use model_files::{Gguf, assert_variant, golden};
use refrain::internals::draft::{CostProfile, EvidenceClass};
use refrain::internals::kernels::{BlockType, IsaKind, quantize};
use refrain::internals::model::gguf::GgufFile;
use refrain::internals::model::packed::pack;
use refrain::internals::model::weights::LoadOptions;
use refrain::{
    CancelToken, Checkpoint, DraftModelOptions, Drafting, Engine, EngineError, EngineOptions, Event,
    GenerateOptions, Pinned, Sampling, SessionOptions, SpecialTokens, StreamOptions, TokenId, step_together,
};
use safetensors::SafeTensors;

fn target_file() -> PathBuf {
    fixtures().join("target.gguf")
}

/// The content of a GGUF file.
fn content(path: &Path) -> Gguf {
    let file = GgufFile::open(path).unwrap();
    let tensors = file
        .tensors()
        .iter()
        .map(|tensor| (tensor.name.clone(), tensor.ty, tensor.dims.clone(), file.read(tensor).unwrap()));
    Gguf { metadata: file.metadata().to_vec(), tensors: tensors.collect() }
}

/// The file of a head of the fixture target with random weights, so that its drafts are right by chance only. Embedding and output
/// matrix are the target's.
fn head_file() -> Gguf {
    let mut head = content(&target_file());
    head.tensors.clear();
    head.set("llama.block_count", 7u32)
        .set("llama.nextn_predict_layers", 1u32)
        .set("llama.vocab_size", 2048u32);
    let mut rng = Rng(3);
    for (name, n_cols, n_rows) in [
        ("nextn.eh_proj", 512, 256),
        ("nextn.enorm", 256, 1),
        ("nextn.hnorm", 256, 1),
        ("nextn.shared_head_norm", 256, 1),
        ("attn_norm", 256, 1),
        ("attn_q", 256, 256),
        ("attn_k", 256, 128),
        ("attn_v", 256, 128),
        ("attn_output", 256, 256),
        ("ffn_norm", 256, 1),
        ("ffn_gate", 256, 512),
        ("ffn_up", 256, 512),
        ("ffn_down", 512, 256),
    ] {
        let (ty, dims) = match n_rows {
            1 => (BlockType::F32, vec![n_cols as u64]),
            _ => (BlockType::Q8_0, vec![n_cols as u64, n_rows as u64]),
        };
        let values: Vec<f32> = (0..n_cols * n_rows).map(|_| 0.2 * rng.signed()).collect();
        let mut data = Vec::new();
        values.chunks_exact(n_cols).for_each(|row| quantize(ty, row, &mut data));
        head.tensors.push((format!("blk.6.{name}.weight"), ty.into(), dims, data));
    }
    head
}

fn random_head() -> Checkpoint {
    Checkpoint::mtp_from_gguf_bytes(head_file().bytes().into(), "head").unwrap()
}

/// The fixture target and its head in one file, as llama.cpp's converter writes them.
fn both() -> Gguf {
    let (mut file, head) = (content(&target_file()), head_file());
    file.metadata = head.metadata;
    file.tensors.extend(head.tensors);
    file
}

/// The golden Qwen3.5, and its random head in a folder of its own.
fn qwen() -> (Checkpoint, Checkpoint, tempfile::TempDir) {
    let (target, folder) = (golden("qwen3_5"), tempfile::tempdir().unwrap());
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(target.join(name), folder.path().join(name)).unwrap();
    }
    std::fs::copy(target.join("mtp.safetensors"), folder.path().join("model.safetensors")).unwrap();
    (Checkpoint::open(target).unwrap(), Checkpoint::open_mtp(folder.path()).unwrap(), folder)
}

/// Rows cost nothing, and passes of the head next to nothing.
fn with_head(target: &Checkpoint, head: &Checkpoint, options: EngineOptions) -> Engine {
    let engine = Engine::load(target, with_free_rows(options), None).unwrap();
    engine.set_draft_model(head, nearly_free(), None).unwrap();
    engine
}

fn with_free_rows(options: EngineOptions) -> EngineOptions {
    EngineOptions { cost_profile: Some(CostProfile::free_rows(100.0)), ..options }
}

fn nearly_free() -> DraftModelOptions {
    DraftModelOptions { cost_profile: Some(CostProfile::free_rows(0.01)), ..DraftModelOptions::default() }
}

fn on(n_threads: usize, isa: Option<IsaKind>) -> EngineOptions {
    EngineOptions { n_threads: Some(n_threads), isa, ..EngineOptions::default() }
}

/// A session that drafts with the head alone, or with all sources.
fn drafted(verify_rows_max: usize, drafting: Drafting) -> SessionOptions {
    SessionOptions {
        verify_rows_max,
        drafting,
        prefill_chunk: 7 * verify_rows_max,
        history: false,
        ..SessionOptions::default()
    }
}

/// A question about a note, in the tokens of the fixture target.
fn question(engine: &Engine) -> Vec<TokenId> {
    let text = format!("<|im_start|>user\n{}\nSummarise.<|im_end|>\n<|im_start|>assistant\n", notes()[0]);
    engine.tokenizer().encode(&text, SpecialTokens::Parse).unwrap()
}

#[test]
fn drafts_of_heads_change_no_bit() {
    let fixture = Checkpoint::open(target_file()).unwrap();
    let (qwen, qwen_head, _folder) = qwen();
    for (name, target, head) in [("dense", &fixture, random_head()), ("recurrent", &qwen, qwen_head)] {
        let engines = [on(1, isa()), on(3, isa()), on(2, Some(IsaKind::Scalar))]
            .map(|options| with_head(target, &head, options));
        let mut prompts = vec![random_prompt(1, 1), random_prompt(2, 90)];
        if name != "recurrent" {
            prompts.push(question(&engines[0]));
        }
        for (prompt, sampling) in prompts.iter().zip(samplings().iter().cycle()) {
            let options = || GenerateOptions { sampling: sampling.clone(), ..options(40) };
            let reference = run(&engines[0], plain(), Vec::new(), prompt, options());
            for (i, rows) in [2, 5, 16, 64].into_iter().enumerate() {
                let drafting = [Drafting::DraftModel, Drafting::Auto][i % 2];
                let case = format!("{name}, {rows} rows, {} tokens", prompt.len());
                let found = run(&engines[i % 3], drafted(rows, drafting), Vec::new(), prompt, options());
                found.assert_equal(&reference, &case);
                let source = found.stats.sources.last().expect("the head is the last source");
                assert_eq!(source.evidence, EvidenceClass::DraftModel, "{case}");
                let computed = source.computed.as_ref().expect("it computes");
                assert!(computed.off.is_none() && computed.passes > 0, "{case}: {computed:?}");
            }
        }
    }
}

#[test]
fn forks_truncations_and_restored_states_change_no_bit() {
    let fixture = Checkpoint::open(target_file()).unwrap();
    let (qwen, qwen_head, _folder) = qwen();
    for (name, target, head) in [("dense", &fixture, random_head()), ("recurrent", &qwen, qwen_head)] {
        let engine = with_head(target, &head, on(2, isa()));
        let mut session = engine.session(drafted(16, Drafting::DraftModel)).unwrap();
        let mut reference = engine.session(plain()).unwrap();
        assert_turns_agree(&mut session, &mut reference, || options(12));
        let drafts = |run: &Run| {
            let computed = run.stats.sources[0].computed.clone().unwrap();
            assert!(computed.passes > 0 && computed.off.is_none(), "{name}: {computed:?}");
        };
        assert_cuts_agree(&mut session, &mut reference, || options(12), drafts);
        // The hidden states of restored tokens are missing.
        let tokens = reference.tokens().to_vec();
        reference.truncate(tokens.len() - 30).unwrap();
        reference.prefill(&CancelToken::new(), |_, _| {}).unwrap();
        let (n, mut state) = (reference.n_cached_tokens(), Vec::new());
        reference.write_state(0..n, &mut state).unwrap();
        let mut restored = engine.session(drafted(16, Drafting::DraftModel)).unwrap();
        restored.append_tokens(&tokens).unwrap();
        assert_eq!(restored.restore_state(0, &tokens[..n], &state).unwrap(), n);
        reference.append_tokens(&tokens[tokens.len() - 30..]).unwrap();
        let expected = run_in(&mut reference, options(20), usize::MAX);
        let found = run_in(&mut restored, options(20), usize::MAX);
        found.assert_equal(&expected, &format!("{name}: restored"));
        assert!(found.stats.sources[0].computed.as_ref().unwrap().passes > 0, "{name}");
    }
}

#[test]
fn a_streamed_target_has_a_resident_head() {
    let folder = tempfile::tempdir().unwrap();
    let packed = folder.path().join("target.refrain");
    pack(&Checkpoint::open(target_file()).unwrap(), &packed, LoadOptions::default()).unwrap();
    let target = Checkpoint::open(&packed).unwrap();
    let resident = with_head(&target, &random_head(), on(2, isa()));
    let prompt = question(&resident);
    let reference = run(&resident, plain(), Vec::new(), &prompt, options(40));
    let whole = Checkpoint::mtp_from_gguf_bytes(both().bytes().into(), "both").unwrap();
    for (pinned, head) in [(Pinned::Layers(6), random_head()), (Pinned::Layers(2), whole)] {
        let options_of = || EngineOptions { streaming: Some(StreamOptions::new(pinned)), ..on(2, isa()) };
        let engine = with_head(&target, &head, options_of());
        let found = run(&engine, drafted(16, Drafting::DraftModel), Vec::new(), &prompt, options(40));
        found.assert_equal(&reference, &format!("{pinned:?}"));
        assert!(found.stats.sources[0].computed.as_ref().unwrap().passes > 0);
    }
    // The target streams its embedding, and the file of the head has none.
    let streaming = Some(StreamOptions::new(Pinned::Layers(2)));
    let engine =
        Engine::load(&target, with_free_rows(EngineOptions { streaming, ..on(2, isa()) }), None).unwrap();
    let error = engine.set_draft_model(&random_head(), nearly_free(), None).unwrap_err();
    assert_variant(&error, "Weights(Missing", &["Embedding"]);
}

#[test]
fn generations_that_share_passes_have_a_head_each() {
    let engine = with_head(&Checkpoint::open(target_file()).unwrap(), &random_head(), on(2, isa()));
    let prompts = [question(&engine), random_prompt(5, 40)];
    let expected: Vec<_> =
        prompts.iter().map(|prompt| run(&engine, plain(), Vec::new(), prompt, options(30)).tokens).collect();
    let generation = |prompt: &Vec<TokenId>| {
        let mut session = engine.session(drafted(8, Drafting::DraftModel)).unwrap();
        session.append_tokens(prompt).unwrap();
        session.into_generation(options(30)).unwrap()
    };
    let mut generations: Vec<_> = prompts.iter().map(generation).collect();
    let (mut found, mut n_done, mut n_shared) = (vec![Vec::new(); prompts.len()], 0, 0);
    while n_done < prompts.len() {
        n_shared += step_together(&mut generations.iter_mut().collect::<Vec<_>>()).passes;
        for (generation, tokens) in generations.iter_mut().zip(&mut found) {
            while !generation.awaits_pass() {
                match generation.next() {
                    Some(Ok(Event::Token(token))) => tokens.push(token.id),
                    Some(Ok(Event::Done(summary))) => {
                        let computed = summary.stats.sources[0].computed.clone().unwrap();
                        assert!(computed.passes > 0 && computed.off.is_none(), "{computed:?}");
                        n_done += 1;
                    }
                    Some(other) => panic!("{other:?}"),
                    None => break,
                }
            }
        }
    }
    assert_eq!(found, expected);
    assert!(n_shared > 0);
}

#[test]
fn a_file_with_model_and_head_is_both() {
    let both = both();
    let alone = Checkpoint::open(target_file()).unwrap();
    let target = Checkpoint::from_gguf_bytes(both.bytes().into(), "both").unwrap();
    assert_eq!(target.config(), alone.config());
    let head = Checkpoint::mtp_from_gguf_bytes(both.bytes().into(), "both").unwrap();
    let engines = [with_head(&target, &head, on(2, isa())), with_head(&alone, &random_head(), on(2, isa()))];
    let prompt = question(&engines[0]);
    let runs = engines
        .each_ref()
        .map(|engine| run(engine, drafted(16, Drafting::DraftModel), Vec::new(), &prompt, options(30)));
    runs[0].assert_equal(&runs[1], "both");
    assert_eq!(runs[0].origins, runs[1].origins, "the same drafts");
    let config = engines[0].draft_model().unwrap().config().clone();
    assert!(config.mtp && config.n_layers() == 1 && !target.config().mtp);
}

#[test]
fn what_is_no_head_is_refused() {
    // Nothing to find.
    let folder = tempfile::tempdir().unwrap();
    let packed = folder.path().join("target.refrain");
    pack(&Checkpoint::open(target_file()).unwrap(), &packed, LoadOptions::default()).unwrap();
    for path in [target_file(), golden("qwen3"), golden("llama"), packed] {
        let error = Checkpoint::open_mtp(&path).unwrap_err();
        assert_variant(&error, "NoMtp", &[path.to_str().unwrap(), "nextn_predict_layers"]);
    }
    // A head is no model, and drafts for its own model alone.
    let fixture = Checkpoint::open(target_file()).unwrap();
    let (qwen, qwen_head, _folder) = qwen();
    let error = Engine::load(&random_head(), EngineOptions::default(), None).unwrap_err();
    assert_variant(&error, "Weights(NoTarget", &["needs the model"]);
    let engine = Engine::load(&fixture, with_free_rows(on(1, isa())), None).unwrap();
    let error = engine.set_draft_model(&qwen_head, nearly_free(), None).unwrap_err();
    assert!(matches!(error, EngineError::MtpWidth { hidden_dim: 48, target_hidden_dim: 256, .. }), "{error}");
    assert!(engine.draft_model().is_none());
    let engine = Engine::load(&qwen, with_free_rows(on(1, isa())), None).unwrap();
    assert!(engine.set_draft_model(&random_head(), nearly_free(), None).is_err());
    // A head with other tensors.
    type Change = fn(&mut Gguf);
    let changes: [(&str, &str, Change); 7] = [
        ("MissingTensor", "blk.6.nextn.eh_proj.weight", |g| {
            _ = g.remove_tensor("blk.6.nextn.eh_proj.weight")
        }),
        ("MissingTensor", "blk.6.nextn.hnorm.weight", |g| _ = g.remove_tensor("blk.6.nextn.hnorm.weight")),
        ("MissingTensor", "blk.6.attn_q.weight", |g| _ = g.remove_tensor("blk.6.attn_q.weight")),
        ("MissingTensor", "blk.6.nextn.shared_head_norm.weight", |g| {
            g.remove_tensor("blk.6.nextn.shared_head_norm.weight");
        }),
        ("WrongShape", "blk.6.nextn.eh_proj.weight", |g| {
            g.remove_tensor("blk.6.nextn.eh_proj.weight");
            g.add_tensor("blk.6.nextn.eh_proj.weight", BlockType::Q8_0, &[256, 256]);
        }),
        ("UnexpectedTensor", "blk.6.nextn.embed_tokens.weight", |g| {
            g.add_tensor("blk.6.nextn.embed_tokens.weight", BlockType::Q8_0, &[256, 2048]);
        }),
        ("UnexpectedTensor", "blk.7.attn_norm.weight", |g| {
            g.set("llama.block_count", 8u32).set("llama.nextn_predict_layers", 2u32);
            g.add_tensor("blk.7.attn_norm.weight", BlockType::F32, &[256]);
        }),
    ];
    for (variant, tensor, change) in changes {
        let mut head = head_file();
        change(&mut head);
        let error = Checkpoint::mtp_from_gguf_bytes(head.bytes().into(), "head").unwrap_err();
        assert_variant(&error, variant, &[tensor]);
    }
    let mut folder = HfModel::tiny("llama");
    for (name, shape) in [
        ("fc", vec![32, 64]),
        ("pre_fc_norm_embedding", vec![32]),
        ("pre_fc_norm_hidden", vec![32]),
        ("norm", vec![32]),
    ] {
        folder.add(&format!("mtp.{name}.weight"), "BF16", &shape);
    }
    let layer: Vec<_> =
        folder.tensors.iter().filter(|t| t.name.starts_with("model.layers.0.")).cloned().collect();
    for tensor in &layer {
        folder.add(&tensor.name.replace("model.", "mtp."), tensor.dtype, &tensor.shape);
    }
    let open = |folder: &HfModel| {
        let dir = tempfile::tempdir().unwrap();
        folder.write(dir.path());
        Checkpoint::open(dir.path()).unwrap();
        Checkpoint::open_mtp(dir.path())
    };
    assert_eq!(open(&folder).unwrap().config().n_layers(), 1);
    assert_variant(&open(folder.clone().remove("mtp.fc.weight")).unwrap_err(), "MissingTensor", &["mtp.fc"]);
    folder.add("mtp.layers.1.input_layernorm.weight", "BF16", &[32]);
    assert_variant(&open(&folder).unwrap_err(), "UnexpectedTensor", &["mtp.layers.1."]);
    // A block that the file does not count for the head is a layer too many.
    let mut uncounted = both();
    uncounted.set("llama.nextn_predict_layers", 0u32).set("llama.block_count", 6u32);
    let error = Checkpoint::from_gguf_bytes(uncounted.bytes().into(), "uncounted").unwrap_err();
    assert_variant(&error, "UnexpectedTensor", &["blk.6."]);
    // The norm of the target serves a head without one.
    let mut shared = both();
    shared.remove_tensor("blk.6.nextn.shared_head_norm.weight");
    let head = Checkpoint::mtp_from_gguf_bytes(shared.bytes().into(), "shared").unwrap();
    let engine = with_head(&fixture, &head, on(1, isa()));
    let sampling = Sampling::default();
    let found = run(
        &engine,
        drafted(8, Drafting::DraftModel),
        Vec::new(),
        &random_prompt(1, 20),
        GenerateOptions { sampling, ..options(10) },
    );
    assert_eq!(found.tokens, run(&engine, plain(), Vec::new(), &random_prompt(1, 20), options(10)).tokens);
}

/// The golden head as a block of a GGUF file, converted as llama.cpp converts it: one is added to every norm, and queries and gate
/// stay together.
#[test]
fn folder_and_file_of_a_head_draft_the_same() {
    let (target, from_folder, _folder) = qwen();
    let mut file = Gguf::from_golden(&golden("qwen3_5"));
    let n_layers = target.config().n_layers();
    let is_recurrent = |layer_idx| layer_idx < n_layers && target.config().attention(layer_idx).is_none();
    file.set("qwen35.block_count", n_layers as u32 + 1).set("qwen35.nextn_predict_layers", 1u32);
    file.set("qwen35.attention.recurrent_layers", (0..=n_layers).map(is_recurrent).collect::<Vec<bool>>());
    let bytes = std::fs::read(golden("qwen3_5").join("mtp.safetensors")).unwrap();
    let names = [
        ("mtp.fc", "nextn.eh_proj"),
        ("mtp.pre_fc_norm_embedding", "nextn.enorm"),
        ("mtp.pre_fc_norm_hidden", "nextn.hnorm"),
        ("mtp.norm", "nextn.shared_head_norm"),
        ("mtp.layers.0.input_layernorm", "attn_norm"),
        ("mtp.layers.0.post_attention_layernorm", "post_attention_norm"),
        ("mtp.layers.0.self_attn.q_proj", "attn_q"),
        ("mtp.layers.0.self_attn.k_proj", "attn_k"),
        ("mtp.layers.0.self_attn.v_proj", "attn_v"),
        ("mtp.layers.0.self_attn.o_proj", "attn_output"),
        ("mtp.layers.0.self_attn.q_norm", "attn_q_norm"),
        ("mtp.layers.0.self_attn.k_norm", "attn_k_norm"),
        ("mtp.layers.0.mlp.gate_proj", "ffn_gate"),
        ("mtp.layers.0.mlp.up_proj", "ffn_up"),
        ("mtp.layers.0.mlp.down_proj", "ffn_down"),
    ];
    for (name, to) in names {
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let tensor = tensors.tensor(&format!("{name}.weight")).unwrap();
        let dims: Vec<u64> = tensor.shape().iter().rev().map(|&dim| dim as u64).collect();
        let word = |pair: &[u8]| f32::from_bits(u32::from(u16::from_le_bytes([pair[0], pair[1]])) << 16);
        let plus = if dims.len() == 1 { 1.0 } else { 0.0 };
        let values = tensor.data().chunks_exact(2).map(|pair| word(pair) + plus);
        let data = values.flat_map(f32::to_le_bytes).collect();
        file.tensors.push((format!("blk.{n_layers}.{to}.weight"), BlockType::F32.into(), dims, data));
    }
    let from_file = Checkpoint::mtp_from_gguf_bytes(file.bytes().into(), "both").unwrap();
    let options_of = || EngineOptions { quantize: refrain::Quantize::F32, ..on(1, isa()) };
    let prompt = random_prompt(4, 40);
    let runs = [&from_folder, &from_file].map(|head| {
        let engine = Engine::load(&target, with_free_rows(options_of()), None).unwrap();
        let options_of_head = DraftModelOptions { quantize: refrain::Quantize::F32, ..nearly_free() };
        engine.set_draft_model(head, options_of_head, None).unwrap();
        run(&engine, drafted(16, Drafting::DraftModel), Vec::new(), &prompt, options(30))
    });
    assert_eq!((&runs[0].tokens, &runs[0].origins), (&runs[1].tokens, &runs[1].origins));
    let rows = runs.each_ref().map(|run| run.stats.sources[0].drafted);
    assert!(rows[0] > 0 && rows[0] == rows[1], "{rows:?}");
}
