//! A small disk: an ext4 file system of its own, that can be filled and can be made to stall.

use std::io::Write;
use std::path::{Path, PathBuf};

use super::net::run;

/// A mounted disk; unmounted when dropped.
#[derive(Debug)]
pub struct Disk {
    /// Where it is mounted.
    pub folder: PathBuf,
}

impl Disk {
    /// A fresh one of `megabytes`, mounted at `folder`.
    ///
    /// # Errors
    /// When it cannot be made or mounted.
    pub fn make(folder: PathBuf, megabytes: u64) -> Result<Self, String> {
        let image = folder.with_extension("img");
        let said = |error: std::io::Error| error.to_string();
        std::fs::create_dir_all(&folder).map_err(said)?;
        let file = std::fs::File::create(&image).map_err(said)?;
        file.set_len(megabytes << 20).map_err(said)?;
        let (image, at) = (image.to_string_lossy(), folder.to_string_lossy());
        run("mkfs.ext4", &["-q", "-F", &image])?;
        run("mount", &["-o", "loop", &image, &at])?;
        Ok(Self { folder })
    }

    /// Leaves no room on it.
    ///
    /// # Errors
    /// When nothing can be written at all.
    pub fn fill(&self) -> Result<(), String> {
        let file = std::fs::File::create(self.ballast());
        let mut file = file.map_err(|error| error.to_string())?;
        for size in [1 << 20, 4 << 10, 1] {
            let piece = vec![0_u8; size];
            while file.write_all(&piece).is_ok() {}
        }
        // What is in no block yet fails here, as it should.
        let _ = file.sync_all();
        Ok(())
    }

    /// Makes room again.
    ///
    /// # Errors
    /// When that fails.
    pub fn empty(&self) -> Result<(), String> {
        std::fs::remove_file(self.ballast()).map_err(|error| error.to_string())
    }

    /// Lets every write wait, until [`Disk::thaw`].
    ///
    /// # Errors
    /// When the file system does not allow it.
    pub fn freeze(&self) -> Result<(), String> {
        run("fsfreeze", &["-f", &self.path()])
    }

    /// Lets writes go on.
    pub fn thaw(&self) {
        // An error says that they do already.
        let _ = run("fsfreeze", &["-u", &self.path()]);
    }

    fn ballast(&self) -> PathBuf {
        self.folder.join("ballast")
    }

    fn path(&self) -> String {
        Path::to_string_lossy(&self.folder).into_owned()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.thaw();
        // What is still open is let go with its process.
        let _ = run("umount", &["-l", &self.path()]);
    }
}
