//! Draft heads, for multi-token prediction and EAGLE-3: the output equals plain decoding, bit for bit, whatever they draft, with resident
//! and streamed targets, and through forks, truncations, restored states and cancelled prefills. What is no head is refused.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use refrain::checkpoint::Checkpoint;
use refrain::drafting::DraftModelOptions;
use refrain::drafting::{
    Anchor, Candidates, Computed, ComputingSource, Cursor, DraftPolicy, DraftRows, DraftSource,
    EvidenceClass, HiddenStates, Predictor,
};
use refrain::internals::draft::CostProfile;
use refrain::internals::draft::testing::AlwaysRight;
use refrain::internals::error::EngineProblem;
use refrain::internals::kernels::{BlockType, IsaKind};
use refrain::internals::model::config::CONTEXT_LEN_MAX;
use refrain::internals::model::packed::pack;
use refrain::internals::model::weights::LoadOptions;
use refrain::streaming::{Pinned, StreamOptions};
use refrain::{
    CancelToken, Drafting, Engine, EngineOptions, GenerateOptions, KvType, Sampling, SessionOptions, TokenId,
};
use safetensors::SafeTensors;
use serde_json::{Value, json};

use crate::common::{
    Run, assert_cuts_agree, assert_shared_passes_draft, assert_turns_agree, drafts_with, fixtures, isa,
    options, plain, question, random_prompt, run, run_in, samplings,
};
use crate::heads::{Eagle3Folder, both, eagle3, head_file, qwen, random_head, target_file};
use crate::model_files::hf::HfModel;
use crate::model_files::{Gguf, assert_variant, golden};

/// Heads of each kind, with targets of attention and of recurrent layers.
struct Pairs {
    fixture: Checkpoint,
    qwen: Checkpoint,
    heads: [(&'static str, Checkpoint); 4],
    _folder: tempfile::TempDir,
}

impl Pairs {
    fn new() -> Self {
        let (qwen, qwen_head, _folder) = qwen();
        let heads = [
            ("dense, MTP", random_head()),
            ("recurrent, MTP", qwen_head),
            ("dense, EAGLE-3", eagle3()),
            ("recurrent, EAGLE-3", Eagle3Folder::of_speculators(48, 384).open().unwrap()),
        ];
        Self { fixture: Checkpoint::open(target_file()).unwrap(), qwen, heads, _folder }
    }

    /// The name, the target and the head of each.
    fn each(&self) -> impl Iterator<Item = (&'static str, &Checkpoint, &Checkpoint)> {
        let target = |name: &str| if name.starts_with("dense") { &self.fixture } else { &self.qwen };
        self.heads.iter().map(move |(name, head)| (*name, target(name), head))
    }
}

/// Rows cost nothing, and passes of the head next to nothing.
fn with_head(target: &Checkpoint, head: &Checkpoint, options: EngineOptions) -> Engine {
    let engine = Engine::load(target, with_free_rows(options), |_, _| {}).unwrap();
    engine.set_draft_model(head, nearly_free(), |_, _| {}).unwrap();
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

/// The same with so many drafts in each step, at any cost.
fn forced(verify_rows_max: usize, drafting: Drafting) -> SessionOptions {
    let rows = DraftRows::Fixed(verify_rows_max - 1);
    let policy = DraftPolicy { rows, ..DraftPolicy::default() };
    SessionOptions { policy, ..drafts_with(verify_rows_max, drafting) }
}

#[test]
fn drafts_of_heads_change_no_bit() {
    for (name, target, head) in Pairs::new().each() {
        let engines = [on(1, isa()), on(3, isa()), on(2, Some(IsaKind::Scalar))]
            .map(|options| with_head(target, head, options));
        let mut prompts = vec![random_prompt(1, 1), random_prompt(2, 90)];
        if name.starts_with("dense") {
            prompts.push(question(&engines[0]));
        }
        for (prompt, sampling) in prompts.iter().zip(samplings().iter().cycle()) {
            let options = || GenerateOptions { sampling: sampling.clone(), ..options(40) };
            let reference = run(&engines[0], plain(), Vec::new(), prompt, options());
            for (i, rows) in [2, 5, 16, 64].into_iter().enumerate() {
                let session = match i % 2 {
                    0 => forced(rows, Drafting::DraftModel),
                    _ => drafts_with(rows, Drafting::Auto),
                };
                let case = format!("{name}, {rows} rows, {} tokens", prompt.len());
                let found = run(&engines[i % 3], session, Vec::new(), prompt, options());
                found.assert_equal(&reference, &case);
                let source = found.stats.sources.last().expect("the head is the last source");
                assert_eq!(source.evidence, EvidenceClass::DraftModel, "{case}");
                let computed = source.computed.as_ref().expect("it computes");
                assert!(computed.off.is_none() && computed.passes > 0, "{case}: {computed:?}");
                assert!(source.drafted > 0 || i % 2 > 0, "{case}");
            }
        }
    }
}

#[test]
fn forks_truncations_and_restored_states_change_no_bit() {
    for (name, target, head) in Pairs::new().each() {
        let engine = with_head(target, head, on(2, isa()));
        let mut session = engine.session(drafts_with(16, Drafting::DraftModel)).unwrap();
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
        let (n, mut state) = (reference.state().n_cached_tokens(), Vec::new());
        reference.state().write(0..n, &mut state).unwrap();
        let mut restored = engine.session(drafts_with(16, Drafting::DraftModel)).unwrap();
        restored.append_tokens(&tokens).unwrap();
        assert_eq!(restored.state_mut().restore(0, &tokens[..n], &state).unwrap(), n);
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
    let whole_eagle3 = Eagle3Folder::of_speculators(256, 2048).open().unwrap();
    for (pinned, head) in [
        (Pinned::Layers(6), random_head()),
        (Pinned::Layers(2), whole),
        (Pinned::Layers(6), eagle3()),
        (Pinned::Layers(2), whole_eagle3),
    ] {
        let options_of = || EngineOptions { streaming: Some(StreamOptions::new(pinned)), ..on(2, isa()) };
        let engine = with_head(&target, &head, options_of());
        let found = run(&engine, drafts_with(16, Drafting::DraftModel), Vec::new(), &prompt, options(40));
        found.assert_equal(&reference, &format!("{pinned:?}"));
        assert!(found.stats.sources[0].computed.as_ref().unwrap().passes > 0);
    }
    // The target streams its embedding, and the file of the head has none.
    let streaming = Some(StreamOptions::new(Pinned::Layers(2)));
    let engine =
        Engine::load(&target, with_free_rows(EngineOptions { streaming, ..on(2, isa()) }), |_, _| {})
            .unwrap();
    for head in [random_head(), eagle3()] {
        let error = engine.set_draft_model(&head, nearly_free(), |_, _| {}).unwrap_err();
        assert_variant(&error, "Missing", &["Embedding"]);
    }
}

/// Drafts nothing and notes the bits of the residual streams before the layers 0, 2 and 3.
#[derive(Clone, Default)]
struct Listener(Arc<Mutex<States>>);

/// The bits of each position.
type States = BTreeMap<usize, Vec<u32>>;

const TAPS: [usize; 3] = [0, 2, 3];

impl DraftSource for Listener {
    refrain::stateless_source!("listener", Plain);

    fn computing(&mut self) -> Option<&mut dyn ComputingSource> {
        Some(self)
    }

    fn anchors(&mut self, _: &[TokenId], _: &mut Vec<Anchor>) {}

    fn expand(&mut self, _: &[Cursor], _: &mut Candidates) {}
}

impl ComputingSource for Listener {
    fn watch(&mut self, _: &Arc<AtomicBool>) {}

    fn computed(&self) -> Computed {
        Computed::default()
    }

    fn reads_hidden(&self) -> Option<HiddenStates> {
        Some(HiddenStates::Before(TAPS))
    }

    fn read_hidden(&mut self, _: &[TokenId], first: usize, hidden: &[f32]) {
        // The golden Llama has 64.
        let rows = hidden.chunks_exact(3 * 64).map(|row| row.iter().map(|x| x.to_bits()).collect());
        self.0.lock().unwrap().extend((first..).zip(rows));
    }
}

#[test]
fn hidden_states_before_layers_are_those_of_the_target_in_every_pass() {
    let bytes = std::fs::read(golden("llama").join("eagle3/golden.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let words = |name: &str| tensors.tensor(name).unwrap().data().as_chunks::<4>().0.to_vec();
    let prompt: Vec<TokenId> =
        words("prompt").into_iter().map(|word| TokenId(u32::from_le_bytes(word))).collect();
    let expected: Vec<f32> = words("states").into_iter().map(f32::from_le_bytes).collect();
    let folder = tempfile::tempdir().unwrap();
    let packed = folder.path().join("llama.refrain");
    let from_folder = Checkpoint::open(golden("llama")).unwrap();
    pack(&from_folder, &packed, LoadOptions { quantize: refrain::Quantize::Keep, ..LoadOptions::default() })
        .unwrap();
    let packed = Checkpoint::open(&packed).unwrap();
    let keeping = |n_threads| EngineOptions { quantize: refrain::Quantize::Keep, ..on(n_threads, isa()) };
    let streaming = Some(StreamOptions::new(Pinned::Layers(1)));
    let engines = [
        (&from_folder, keeping(1)),
        (&from_folder, keeping(3)),
        (&packed, EngineOptions { streaming, ..keeping(2) }),
    ]
    .map(|(checkpoint, options)| Engine::load(checkpoint, with_free_rows(options), |_, _| {}).unwrap());
    let mut first: Option<(States, Vec<TokenId>)> = None;
    for (i, chunk) in [64, 7, 1, 16].into_iter().enumerate() {
        let listener = Listener::default();
        let mut sources: Vec<Box<dyn DraftSource>> = vec![Box::new(listener.clone())];
        if let Some((_, output)) = &first {
            sources.push(Box::new(AlwaysRight::new(prompt.len(), output.clone())));
        }
        let session =
            SessionOptions { prefill_chunk: chunk, kv_type: KvType::F32, ..forced(8, Drafting::Auto) };
        let found = run(&engines[i % 3], session, sources, &prompt, options(30));
        let states = listener.0.lock().unwrap().clone();
        let Some((same, output)) = &first else {
            for (position, row) in states.iter().take(prompt.len()) {
                let off = row.iter().zip(&expected[3 * 64 * position..]);
                let off = off.map(|(&bits, x)| (f32::from_bits(bits) - x).abs()).fold(0.0, f32::max);
                assert!(off < 2e-3, "position {position}: off by {off}");
            }
            assert!(states.keys().copied().eq(0..prompt.len() + found.tokens.len() - 1));
            first = Some((states, found.tokens));
            continue;
        };
        assert_eq!(found.tokens, *output);
        assert!(found.stats.acceptance_length() > 3.0, "the batches have several rows");
        assert!(states == *same, "chunks of {chunk}");
    }
}

#[test]
fn pruned_batches_change_no_bit() {
    let engine = with_head(&Checkpoint::open(target_file()).unwrap(), &eagle3(), on(2, isa()));
    engine.set_predictor(Predictor::read(fixtures().join("target.predictor")).unwrap()).unwrap();
    let prompt = question(&engine);
    let reference = run(&engine, plain(), Vec::new(), &prompt, options(40));
    let found = run(&engine, forced(64, Drafting::Auto), Vec::new(), &prompt, options(40));
    found.assert_equal(&reference, "pruned");
    let pruning = found.stats.pruning.expect("the predictor is asked");
    assert!(pruning.pruned_steps > 0, "{pruning:?}");
}

#[test]
fn generations_that_share_passes_have_a_head_each() {
    for head in [random_head(), eagle3()] {
        let engine = with_head(&Checkpoint::open(target_file()).unwrap(), &head, on(2, isa()));
        let prompts = [question(&engine), random_prompt(5, 40)];
        assert_shared_passes_draft(&engine, &drafts_with(8, Drafting::DraftModel), &prompts);
    }
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
        .map(|engine| run(engine, drafts_with(16, Drafting::DraftModel), Vec::new(), &prompt, options(30)));
    runs[0].assert_equal(&runs[1], "both");
    assert_eq!(runs[0].origins, runs[1].origins, "the same drafts");
    let config = engines[0].draft_model().unwrap().config().clone();
    assert!(config.draft_head.is_some() && config.n_layers() == 1 && target.config().draft_head.is_none());
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
    let error = Engine::load(&random_head(), EngineOptions::default(), |_, _| {}).unwrap_err();
    assert_variant(&error, "NoTarget", &["needs the model"]);
    let engine = Engine::load(&fixture, with_free_rows(on(1, isa())), |_, _| {}).unwrap();
    let error = engine.set_draft_model(&qwen_head, nearly_free(), |_, _| {}).unwrap_err();
    assert!(
        matches!(
            error.detail(),
            Some(EngineProblem::HeadWidth { hidden_dim: 48, target_hidden_dim: 256, .. })
        ),
        "{error}"
    );
    assert!(engine.draft_model().is_none());
    let engine = Engine::load(&qwen, with_free_rows(on(1, isa())), |_, _| {}).unwrap();
    assert!(engine.set_draft_model(&random_head(), nearly_free(), |_, _| {}).is_err());
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
        drafts_with(8, Drafting::DraftModel),
        Vec::new(),
        &random_prompt(1, 20),
        GenerateOptions { sampling, ..options(10) },
    );
    assert_eq!(found.tokens, run(&engine, plain(), Vec::new(), &random_prompt(1, 20), options(10)).tokens);
}

#[test]
fn what_is_no_eagle3_head_is_refused() {
    type Change = fn(&mut Eagle3Folder);
    let changes: [(&str, &[&str], Change); 20] = [
        ("MissingTensor", &["`fc.weight`"], |f| _ = f.tensors.remove("fc.weight")),
        ("MissingTensor", &["`lm_head.weight`"], |f| _ = f.tensors.remove("lm_head.weight")),
        ("MissingTensor", &["`midlayer.hidden_norm.weight`"], |f| {
            f.tensors.remove("midlayer.hidden_norm.weight");
        }),
        ("MissingTensor", &["`d2t`"], |f| _ = f.tensors.remove("d2t")),
        ("WrongShape", &["`fc.weight`", "[256, 512]", "[256, 768]"], |f| f.add("fc.weight", &[256, 512])),
        ("WrongShape", &["`midlayer.self_attn.k_proj.weight`", "[32, 256]", "[32, 512]"], |f| {
            f.add("midlayer.self_attn.k_proj.weight", &[32, 256]);
        }),
        ("WrongShape", &["`lm_head.weight`", "[2048, 256]", "[682, 256]"], |f| {
            f.add("lm_head.weight", &[2048, 256]);
        }),
        ("WrongShape", &["`embed_tokens.weight`"], |f| f.add("embed_tokens.weight", &[2048, 128])),
        ("WrongShape", &["`d2t`", "[2]", "[682]"], |f| f.set_drafted(&[1, 2])),
        ("UnsupportedType", &["`d2t`", "F32"], |f| f.add("d2t", &[682])),
        ("DraftToken", &["entry 681", "token 2048", "2048 in the vocabulary"], |f| {
            f.set_drafted(&(0..682).map(|i| if i == 681 { 2048 } else { i }).collect::<Vec<_>>());
        }),
        ("DraftToken", &["entry 5", "token -1"], |f| {
            f.set_drafted(&(0..682).map(|i| if i == 5 { -1 } else { i }).collect::<Vec<_>>());
        }),
        ("DraftToken", &["entry 9", "token 3"], |f| {
            f.set_drafted(&(0..682).map(|i| if i == 9 { 3 } else { i }).collect::<Vec<_>>());
        }),
        ("UnexpectedTensor", &["`layers.1.hidden_norm.weight`"], |f| {
            f.add("layers.1.hidden_norm.weight", &[256])
        }),
        ("Config(Unsupported", &["fc_norm", "true"], |f| f.config["fc_norm"] = true.into()),
        ("Config(Unsupported", &["use_aux_hidden_state", "false"], |f| {
            f.config["eagle_config"] = json!({"use_aux_hidden_state": false});
        }),
        ("Config(Unsupported", &["num_hidden_layers", "2"], |f| f.config["num_hidden_layers"] = 2.into()),
        ("Config(Unsupported", &["model_type", "qwen3"], |f| f.config["model_type"] = "qwen3".into()),
        ("Config(Unsupported", &["eagle_aux_hidden_state_layer_ids", "[1, 2]"], |f| {
            f.config["eagle_aux_hidden_state_layer_ids"] = json!([1, 2]);
        }),
        ("Config(OutOfRange", &["draft vocab_size", "2049"], |f| f.config["draft_vocab_size"] = 2049.into()),
    ];
    for (variant, parts, change) in changes {
        let mut folder = Eagle3Folder::new(256, 2048);
        change(&mut folder);
        assert_variant(&folder.open().unwrap_err(), variant, parts);
    }
    // A head is no model, and drafts for its own model alone.
    let error = Engine::load(&eagle3(), EngineOptions::default(), |_, _| {}).unwrap_err();
    assert_variant(&error, "NoTarget", &["needs the model"]);
    let out = tempfile::tempdir().unwrap();
    let error = pack(&eagle3(), &out.path().join("head"), LoadOptions::default()).unwrap_err();
    assert_variant(&error, "DraftHead", &["is not packed"]);
    let fixture = Checkpoint::open(target_file()).unwrap();
    let engine = Engine::load(&fixture, with_free_rows(on(1, isa())), |_, _| {}).unwrap();
    let refused = |change: Change| {
        let mut folder = Eagle3Folder::of_speculators(256, 2048);
        change(&mut folder);
        let error = engine.set_draft_model(&folder.open().unwrap(), nearly_free(), |_, _| {}).unwrap_err();
        assert!(engine.draft_model().is_none());
        error
    };
    let error = refused(|f| *f = Eagle3Folder::new(48, 384));
    assert_variant(&error, "HeadWidth", &["states of 48 and 384", "256 and 2048"]);
    let error = refused(|f| {
        f.config["target_hidden_size"] = 128.into();
        f.add("fc.weight", &[256, 384]);
    });
    assert_variant(&error, "HeadWidth", &["states of 128 and 2048", "256 and 2048"]);
    // Layers by their inputs, and by their outputs. The output of the last layer is there.
    for ids in [json!([2, 5, 7]), json!([1, 3, 6])] {
        let mut folder = Eagle3Folder::new(256, 2048);
        folder.config["eagle_config"] = json!({"eagle_aux_hidden_state_layer_ids": ids});
        let error = engine.set_draft_model(&folder.open().unwrap(), nearly_free(), |_, _| {}).unwrap_err();
        assert_variant(&error, "HeadLayer", &["input of layer 7", "6 layers"]);
    }
    let mut folder = Eagle3Folder::new(256, 2048);
    folder.config["eagle_config"] = json!({"eagle_aux_hidden_state_layer_ids": [1, 3, 5]});
    engine.set_draft_model(&folder.open().unwrap(), nearly_free(), |_, _| {}).unwrap();
    let prompt = random_prompt(3, 50);
    let found = run(&engine, forced(8, Drafting::DraftModel), Vec::new(), &prompt, options(20));
    found.assert_equal(&run(&engine, plain(), Vec::new(), &prompt, options(20)), "the last layer's output");
    assert!(found.stats.sources[0].drafted > 0);
}

/// A cancel token stops the work that it was given to alone: a head reads the next prompt as it comes, and keeps no states of it.
#[test]
fn a_cancelled_generation_stops_nothing_later() {
    let pairs = Pairs::new();
    for (name, target, head) in pairs.each() {
        let engine = with_head(target, head, on(2, isa()));
        let options_of = SessionOptions { prefill_chunk: 64, ..forced(8, Drafting::DraftModel) };
        let n_more = engine.config().context_len.min(1000) - 100;
        let [calm, cancelled] = [false, true].map(|cancels| {
            let mut session = engine.session(options_of.clone()).unwrap();
            session.append_tokens(&random_prompt(1, 30)).unwrap();
            let mut generation = session.generate(options(20)).unwrap();
            generation.by_ref().take(5).for_each(|event| drop(event.unwrap()));
            if cancels {
                generation.cancel_token().cancel();
                generation.by_ref().for_each(|event| drop(event.unwrap()));
            }
            drop(generation);
            session.append_tokens(&random_prompt(2, n_more)).unwrap();
            let cancel = CancelToken::new();
            while let (done, end) = session.prefill_chunk(&cancel).unwrap()
                && done < end
            {}
            let used = session.draft_memory_usage();
            let run = run_in(&mut session, options(2), usize::MAX);
            (used, run.stats.sources[0].computed.clone().unwrap())
        });
        // Most rows were read before the generation began.
        assert!(cancelled.1.rows < 400, "{name}: {:?}", cancelled.1);
        assert!(cancelled.0 <= calm.0 + calm.0 / 8, "{name}: {cancelled:?}, {calm:?}");
        assert_eq!(cancelled.1.off, None, "{name}");
    }
}

/// A head with a context of 64 tokens: it drafts before, says why it does not draft behind, and drafts again when the text is cut.
#[test]
fn a_head_with_a_short_context_turns_itself_off() {
    let fixture = Checkpoint::open(target_file()).unwrap();
    let mut eagle3 = Eagle3Folder::new(256, 2048);
    eagle3.config["max_position_embeddings"] = 64.into();
    let mut mtp = head_file();
    mtp.set("llama.context_length", 64u32);
    let mtp = Checkpoint::mtp_from_gguf_bytes(mtp.bytes().into(), "head").unwrap();
    for (name, head) in [("EAGLE-3", eagle3.open().unwrap()), ("MTP", mtp)] {
        let engine = with_head(&fixture, &head, on(2, isa()));
        assert_eq!(engine.draft_model().unwrap().config().context_len, 64, "{name}");
        let mut session = engine.session(forced(8, Drafting::DraftModel)).unwrap();
        let mut reference = engine.session(plain()).unwrap();
        for (n_more, cut) in [(30, 0), (60, 0), (900, 0), (10, 990), (200, 0)] {
            let len = session.tokens().len() - cut;
            for session in [&mut session, &mut reference] {
                session.truncate(len).unwrap();
                session.append_tokens(&random_prompt(n_more as u64, n_more)).unwrap();
            }
            let expected = run_in(&mut reference, options(10), usize::MAX);
            let found = run_in(&mut session, options(10), usize::MAX);
            let len = session.tokens().len();
            let case = format!("{name}, {len} tokens");
            found.assert_equal(&expected, &case);
            let source = &found.stats.sources[0];
            let off = source.computed.as_ref().unwrap().off.clone();
            match len <= 64 {
                true => assert!(off.is_none() && source.drafted > 0, "{case}: {off:?}"),
                false => {
                    let off = off.unwrap();
                    assert!(off.contains("exceed the draft model's context of 64"), "{case}: {off}");
                }
            }
        }
        // The cache of the context, and no states of the tokens behind it.
        let mut fresh = engine.session(forced(8, Drafting::DraftModel)).unwrap();
        fresh.append_tokens(&random_prompt(1, 60)).unwrap();
        run_in(&mut fresh, options(1), usize::MAX);
        let (long, short) = (session.draft_memory_usage(), fresh.draft_memory_usage());
        assert!(long < short + short / 2, "{name}: {long} {short}");
    }
}

/// An EAGLE-3 head that states no context has that of its target. A scaling of rotations needs the stated one.
#[test]
fn a_head_without_a_context_has_that_of_its_target() {
    let fixture = Checkpoint::open(target_file()).unwrap();
    for of_speculators in [false, true] {
        let mut folder = match of_speculators {
            true => Eagle3Folder::of_speculators(256, 2048),
            false => Eagle3Folder::new(256, 2048),
        };
        let layer =
            if of_speculators { &mut folder.config["transformer_layer_config"] } else { &mut folder.config };
        layer["max_position_embeddings"] = Value::Null;
        assert_eq!(folder.open().unwrap().config().context_len, CONTEXT_LEN_MAX);
        let layer =
            if of_speculators { &mut folder.config["transformer_layer_config"] } else { &mut folder.config };
        layer.as_object_mut().unwrap().remove("max_position_embeddings");
        let engine = with_head(&fixture, &folder.open().unwrap(), on(1, isa()));
        let context_len = engine.draft_model().unwrap().config().context_len;
        assert_eq!(context_len, engine.config().context_len, "of speculators: {of_speculators}");
        let layer =
            if of_speculators { &mut folder.config["transformer_layer_config"] } else { &mut folder.config };
        layer["rope_scaling"] = json!({"rope_type": "dynamic", "factor": 2.0});
        assert_variant(&folder.open().unwrap_err(), "Config(Missing", &["`", "max_position_embeddings"]);
    }
}

/// A head whose hidden states have another width than the target's has an embedding of its own.
#[test]
fn layouts_and_widths_of_eagle3_heads() {
    let fixture = Checkpoint::open(target_file()).unwrap();
    let mut of_speculators = Eagle3Folder::of_speculators(256, 2048);
    of_speculators.config["norm_before_residual"] = false.into();
    let heads = [Eagle3Folder::new(256, 2048), of_speculators].map(|folder| folder.open().unwrap());
    assert_eq!(heads[0].config(), heads[1].config());
    let mut narrow = Eagle3Folder::of_speculators(64, 2048);
    narrow.config["target_hidden_size"] = 256.into();
    narrow.add("fc.weight", &[64, 768]);
    let narrow = narrow.open().unwrap();
    let mut origins = Vec::new();
    for head in [&heads[0], &heads[1], &narrow] {
        let engine = with_head(&fixture, head, on(2, isa()));
        let prompt = question(&engine);
        let found = run(&engine, forced(16, Drafting::DraftModel), Vec::new(), &prompt, options(30));
        found.assert_equal(&run(&engine, plain(), Vec::new(), &prompt, options(30)), "layouts");
        assert!(found.stats.sources[0].drafted > 0);
        origins.push(found.origins);
    }
    assert_eq!(origins[0], origins[1], "the same drafts");
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
        let engine = Engine::load(&target, with_free_rows(options_of()), |_, _| {}).unwrap();
        let options_of_head = DraftModelOptions { quantize: refrain::Quantize::F32, ..nearly_free() };
        engine.set_draft_model(head, options_of_head, |_, _| {}).unwrap();
        run(&engine, drafts_with(16, Drafting::DraftModel), Vec::new(), &prompt, options(30))
    });
    assert_eq!((&runs[0].tokens, &runs[0].origins), (&runs[1].tokens, &runs[1].origins));
    let rows = runs.each_ref().map(|run| run.stats.sources[0].drafted);
    assert!(rows[0] > 0 && rows[0] == rows[1], "{rows:?}");
}
