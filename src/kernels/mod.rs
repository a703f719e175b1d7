//! Arithmetic over slices: the only place, besides file mapping, with `unsafe`.
#![allow(unsafe_code)]
