//! The four tasks of an assistant app and the prompts that state them.
