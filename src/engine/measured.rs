//! [`MeasuredCosts`]: what loading has measured, so that the next start need not measure it again.
//!
//! The engine writes nothing: a program keeps the values, and gives them to [`Engine::load_measured`](crate::Engine::load_measured). They choose
//! drafts, as every cost does, and never change the output.

use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::draft::CostProfile;
use crate::engine::measure::{ContextCosts, LoadCosts};
use crate::error::LoadError;
use crate::kernels::KvType;
use crate::model::Model;
use crate::model::transformer::Compute;
use crate::profile::ProfileKey;

/// The costs of one model's rows on one machine, measured while it was loaded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredCosts {
    key: MeasuredKey,
    costs: LoadCosts,
}

/// What the times depend on, besides rows and context: they are used only if all of it is the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MeasuredKey {
    /// The version of Refrain: another one has other kernels.
    version: String,
    /// Machine and shape, as of a stored profile. The KV type is that of the measured cache.
    profile: ProfileKey,
    /// A hash of all hyper-parameters and formats of matrices.
    layout: String,
    /// Whether the matrices lie in a mapped file, with the pages of a file.
    mapped: bool,
}

impl MeasuredKey {
    fn new(model: &Model, compute: Compute<'_>, mapped: bool) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            profile: ProfileKey::new(model, compute, KvType::F16),
            layout: model.layout().to_string(),
            mapped,
        }
    }
}

impl MeasuredCosts {
    /// Whether both were measured of the same on the same, so that the newer one replaces the other.
    pub fn is_of_same(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

/// Where the costs of an engine's rows come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CostsOrigin {
    /// The options gave them, or forbade to measure.
    Options,
    /// A stored profile.
    Profile,
    /// An earlier start measured them.
    Kept,
    /// This start measured them.
    Measured,
    /// The times of static graphs.
    Graphs,
}

/// Costs that an engine was given, and those that it has measured itself.
#[derive(Debug, Default)]
pub(super) struct Kept {
    given: Vec<MeasuredCosts>,
    measured: Mutex<Vec<MeasuredCosts>>,
}

impl Kept {
    pub(super) fn new(given: Vec<MeasuredCosts>) -> Self {
        Self { given, measured: Mutex::default() }
    }

    /// The costs of a model: the given ones of this key, or those that `measure` returns, which are remembered.
    pub(super) fn get_or_measure(
        &self,
        model: &Model,
        compute: Compute<'_>,
        mapped: bool,
        measure: impl FnOnce() -> Result<LoadCosts, LoadError>,
    ) -> Result<(LoadCosts, CostsOrigin), LoadError> {
        self.of_key(MeasuredKey::new(model, compute, mapped), measure)
    }

    fn of_key(
        &self,
        key: MeasuredKey,
        measure: impl FnOnce() -> Result<LoadCosts, LoadError>,
    ) -> Result<(LoadCosts, CostsOrigin), LoadError> {
        let found = self.given.iter().find(|given| given.key == key && given.costs.are_times());
        if let Some(given) = found {
            return Ok((given.costs.clone(), CostsOrigin::Kept));
        }
        let costs = measure()?;
        let measured = MeasuredCosts { key, costs: costs.clone() };
        self.measured.lock().unwrap_or_else(PoisonError::into_inner).push(measured);
        Ok((costs, CostsOrigin::Measured))
    }

    /// What was measured, because nothing given fits.
    pub(super) fn measured(&self) -> Vec<MeasuredCosts> {
        self.measured.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The costs that an engine starts from.
pub(super) struct StartCosts {
    pub(super) steps: CostProfile,
    pub(super) projection: CostProfile,
    pub(super) context: Option<ContextCosts>,
    pub(super) origin: CostsOrigin,
}

impl StartCosts {
    /// Costs that say nothing of a context.
    pub(super) fn new(steps: CostProfile, projection: CostProfile, origin: CostsOrigin) -> Self {
        Self { steps, projection, context: None, origin }
    }
}

impl From<(LoadCosts, CostsOrigin)> for StartCosts {
    fn from((costs, origin): (LoadCosts, CostsOrigin)) -> Self {
        Self { steps: costs.costs(), projection: costs.projection(), context: costs.context(), origin }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> MeasuredKey {
        MeasuredKey {
            version: "1.0.0".to_owned(),
            profile: ProfileKey::example(),
            layout: "0a".to_owned(),
            mapped: true,
        }
    }

    fn kept(key: MeasuredKey, costs: LoadCosts) -> Kept {
        Kept::new(vec![MeasuredCosts { key, costs }])
    }

    fn costs() -> LoadCosts {
        LoadCosts::of(&[(1, 100.0), (8, 200.0)])
    }

    fn anew() -> LoadCosts {
        LoadCosts::of(&[(1, 1.0), (8, 2.0)])
    }

    #[test]
    fn what_was_measured_of_the_same_is_not_measured_again() {
        let kept = kept(key(), costs());
        let found = kept.of_key(key(), || panic!("it is kept")).unwrap();
        assert_eq!(found, (costs(), CostsOrigin::Kept));
        assert_eq!(kept.measured(), []);
    }

    #[test]
    fn a_difference_in_any_part_of_the_key_is_measured() {
        let changes: [&dyn Fn(&mut MeasuredKey); 17] = [
            &|key| key.version = "1.0.1".to_owned(),
            &|key| key.layout = "0b".to_owned(),
            &|key| key.mapped = false,
            &|key| key.profile.cpu = "Another".to_owned(),
            &|key| key.profile.isa = "avx2".to_owned(),
            &|key| key.profile.n_threads = 3,
            &|key| key.profile.n_layers = 2,
            &|key| key.profile.hidden_dim = 65,
            &|key| key.profile.ffn_dim = 129,
            &|key| key.profile.n_heads = 3,
            &|key| key.profile.n_kv_heads = 2,
            &|key| key.profile.head_dim = 33,
            &|key| key.profile.vocab_size = 301,
            &|key| key.profile.weights_bytes = 1001,
            &|key| key.profile.n_experts = 1,
            &|key| key.profile.kv_type = KvType::Q8_0,
            &|key| (key.mapped, key.profile.n_threads) = (false, 1),
        ];
        for (i, change) in changes.iter().enumerate() {
            let (kept, mut other) = (kept(key(), costs()), key());
            change(&mut other);
            let found = kept.of_key(other.clone(), || Ok(anew())).unwrap();
            assert_eq!(found, (anew(), CostsOrigin::Measured), "change {i}");
            assert_eq!(kept.measured(), [MeasuredCosts { key: other, costs: anew() }], "change {i}");
        }
    }

    #[test]
    fn what_cannot_be_times_is_measured() {
        for steps in
            [&[][..], &[(0, 1.0)], &[(1, 0.0)], &[(1, -1.0)], &[(1, f32::NAN)], &[(1, 1e10)], &[(1, 1.0); 65]]
        {
            let found = kept(key(), LoadCosts::of(steps)).of_key(key(), || Ok(anew())).unwrap();
            assert_eq!(found, (anew(), CostsOrigin::Measured), "{steps:?}");
        }
    }

    #[test]
    fn the_json_form_is_read_again_and_nothing_else() {
        let measured = MeasuredCosts { key: key(), costs: costs() };
        let json = serde_json::to_value(&measured).unwrap();
        assert_eq!(serde_json::from_value::<MeasuredCosts>(json.clone()).unwrap(), measured);
        let mut more = json.clone();
        more["costs"]["more"] = 1.into();
        let mut less = json;
        less["key"].as_object_mut().unwrap().remove("layout");
        for other in [more, less, serde_json::json!({}), serde_json::json!(null)] {
            assert!(serde_json::from_value::<MeasuredCosts>(other.clone()).is_err(), "{other}");
        }
    }
}
