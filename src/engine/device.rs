//! [`Device`]: what an engine knows about the device, and what the app reports about it.

use std::fmt;
use std::sync::{Arc, PoisonError};

use crate::draft::CostProfile;
use crate::energy::EnergyMeter;
use crate::engine::measured::{CostsOrigin, MeasuredCosts};
use crate::engine::options::SessionOptions;
use crate::engine::policy::{MemoryPressure, PowerState, ThermalState};
#[cfg(doc)]
use crate::engine::session::Session;
use crate::engine::shared::Shared;
use crate::error::LoadError;
use crate::face::internals;
use crate::kernels::{IsaKind, KernelsNotice, KvType};
use crate::profile::{self, MachineProfile, ProfileOptions, ThreadEnergy};

/// The device of an [`Engine`](crate::Engine). The app reports heat, memory pressure and power; the engine measures step costs and energy. Nothing
/// here changes the output.
#[derive(Clone, Copy)]
pub struct Device<'a> {
    pub(super) shared: &'a Shared,
}

impl fmt::Debug for Device<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("isa", &self.isa())
            .field("n_threads", &self.n_threads())
            .field("thermal_state", &self.thermal_state())
            .field("memory_pressure", &self.memory_pressure())
            .field("power_state", &self.power_state())
            .finish_non_exhaustive()
    }
}

impl<'a> Device<'a> {
    /// The instruction set of the kernels.
    pub fn isa(&self) -> IsaKind {
        self.shared.kernels.isa()
    }

    /// Threads of the forward pass.
    pub fn n_threads(&self) -> usize {
        self.shared.pool.n_threads()
    }

    /// Why the engine computes with the slow scalar kernels; `None` if it does not, or if
    /// [`EngineOptions::isa`](crate::EngineOptions::isa) requires an instruction set. An app shows it once: nothing else tells its user why answers
    /// are slow.
    pub fn kernels_notice(&self) -> Option<KernelsNotice> {
        self.shared.kernels_notice
    }

    /// Sets the device's thermal state; callable from any thread. Threads are bounded at once, drafts from
    /// each session's next step. [`ThermalState`] lists the bounds. The output is unchanged, bit for bit.
    pub fn set_thermal_state(&self, state: ThermalState) {
        self.shared.device.set_thermal(state);
        self.shared.pool.limit(state.n_threads(self.shared.pool.n_threads()));
    }

    /// Sets the device's power supply; callable from any thread. [`PowerState`] lists the effects. The output is
    /// unchanged, bit for bit.
    pub fn set_power_state(&self, state: PowerState) {
        self.shared.device.set_power(state);
        self.shared.pool.set_spin_time(state.spin_time());
    }

    /// Sets the energy counter that the statistics of later generations read
    /// ([`Stats::energy`](crate::Stats::energy)); `None`: no energy in the statistics. At first it is the processor's
    /// counter (`/sys/class/powercap`), if this process may read it.
    pub fn set_energy_meter(&self, meter: Option<Arc<dyn EnergyMeter>>) {
        let mut held = self.shared.energy_meter.lock().unwrap_or_else(PoisonError::into_inner);
        let old = std::mem::replace(&mut *held, meter);
        drop(held);
        // The app's own code, which may call the engine.
        drop(old);
    }

    /// Measures the energy of plain decoding for each number of threads, up to those of the engine (above 4, every
    /// second, fourth, …): about half a second each. `None` without an energy counter. Nothing else should run
    /// meanwhile. Afterwards the number of threads is as before.
    ///
    /// # Errors
    /// As [`measure_profile`](Self::measure_profile).
    pub fn measure_energy(&self) -> Result<Option<Vec<ThreadEnergy>>, LoadError> {
        let Some(meter) = self.shared.energy_meter() else { return Ok(None) };
        let measured = profile::measure_energy(&self.shared.model, self.shared.compute(), &*meter);
        // The measurement limits the pool.
        self.set_thermal_state(self.thermal_state());
        Ok(measured?)
    }

    /// Sets the memory pressure; callable from any thread. [`MemoryPressure`] lists the released buffers.
    ///
    /// Every call makes each session release memory again, at its next step or prefill. A session that waits
    /// releases memory with [`Session::release_memory`], and at [`MemoryPressure::Critical`] its KV cache too, which is computed again when
    /// the session goes on. The [history](crate::Engine::history) is emptied at once by a critical report, and a streamed model releases its pinned
    /// layers at once, or after the current pass. When the pressure ends, later passes pin the layers again as they read
    /// them. The output is unchanged, bit for bit.
    pub fn set_memory_pressure(&self, level: MemoryPressure) {
        self.shared.device.set_pressure(level);
        if level == MemoryPressure::Critical {
            self.shared.history.release();
        }
        if let Some(streamed) = self.shared.model.streamed() {
            streamed.set_lean(level == MemoryPressure::Critical);
        }
    }

    /// The stored profile that generations start from, if one was given and matches this machine.
    pub fn profile(&self) -> Option<&'a MachineProfile> {
        self.shared.profile.as_ref()
    }

    /// Why sessions with this type of KV cache ignore the profile that the options gave; `None` if they use it or none was given. The
    /// kind is [`Mismatch`](crate::ErrorKind::Mismatch), the field differs.
    pub fn profile_mismatch(&self, kv_type: KvType) -> Option<LoadError> {
        let kv_mismatch = self.profile().and_then(|profile| profile.key().kv_mismatch(kv_type));
        kv_mismatch.or_else(|| self.shared.profile_mismatch.clone()).map(LoadError::from)
    }

    /// Measures step costs on this machine; `progress` is called with (entries done, entries to do). Takes
    /// about ten seconds for a model of 1.5 billion weights in 4 bits on two cores, longer for larger ones. Nothing else
    /// should run meanwhile.
    ///
    /// # Errors
    /// There is no memory for a cache of the longest context, or a list of the options has no usable entry.
    pub fn measure_profile(
        &self,
        options: &ProfileOptions,
        progress: impl FnMut(u64, u64),
    ) -> Result<MachineProfile, LoadError> {
        Ok(MachineProfile::measure(&self.shared.model, self.shared.compute(), options, progress)?)
    }

    internals! {
        /// What this engine has measured while it loaded its models, for [`Engine::load_measured`](crate::Engine::load_measured) of a later
        /// start. Empty if everything was given.
        #[cfg_attr(not(feature = "internals"), allow(dead_code, reason = "for the program"))]
        fn measured_costs(&self) -> Vec<MeasuredCosts> {
            self.shared.kept.measured()
        }

        /// Where the costs come from that the engine started with.
        #[cfg_attr(not(feature = "internals"), allow(dead_code, reason = "for the program"))]
        fn costs_origin(&self) -> CostsOrigin {
            self.shared.costs_origin
        }

        /// The thermal state set last.
        fn thermal_state(&self) -> ThermalState {
            self.shared.device.thermal()
        }

        /// The power supply set last.
        fn power_state(&self) -> PowerState {
            self.shared.device.power()
        }

        /// The energy counter, if there is one.
        fn energy_meter(&self) -> Option<Arc<dyn EnergyMeter>> {
            self.shared.energy_meter()
        }

        /// The memory pressure set last.
        fn memory_pressure(&self) -> MemoryPressure {
            self.shared.device.pressure().level
        }

        /// Cost of a verification batch, as learned so far; with a stored profile, for an empty context.
        fn cost_profile(&self) -> CostProfile {
            match &self.shared.profile {
                Some(profile) => {
                    let costs = profile.costs(0, SessionOptions::default().projection_rows);
                    costs.corrected(self.shared.learned().correction())
                }
                None => self.shared.learned().costs().clone(),
            }
        }
    }
}
