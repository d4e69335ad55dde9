//! Connecting on a unix socket.

use super::process::Helper;
use super::{failed, Folder, Workload};
use crate::error::ProbeError;
use crate::sys::calls::{self, UnixAddress};
use std::ffi::CStr;
use std::os::fd::AsFd;

const NAME: &CStr = c"socket";
const SOCKET: &str = "socket";
const BACKLOG: libc::c_int = 128;

/// `unix_connect`: LMbench's connection cost, with a server in another process.
pub struct Connect {
    address: UnixAddress,
    _server: Helper,
    _folder: Folder,
}

impl Connect {
    pub fn new(folder: Folder) -> Result<Self, ProbeError> {
        folder.enter()?; // a name of one component, however long the folder's own path
        let address = UnixAddress::new(NAME)
            .ok_or_else(|| ProbeError::Failed("unix_connect: the address is too long".into()))?;
        let listener = address
            .listen(BACKLOG)
            .map_err(|error| failed("bind and listen", &folder.path.to_string_lossy(), &error))?;
        let server = Helper::start(|| {
            while let Ok(connection) = calls::accept(listener.as_fd()) {
                if calls::close(connection).is_err() {
                    break;
                }
            }
        })?;
        Ok(Self {
            address,
            _server: server,
            _folder: folder,
        })
    }
}

impl Workload for Connect {
    fn operate(&mut self, operations: u64) -> Result<(), ProbeError> {
        for _ in 0..operations {
            let socket = self
                .address
                .connect()
                .map_err(|error| failed("socket and connect", SOCKET, &error))?;
            calls::close(socket).map_err(|error| failed("close", SOCKET, &error))?;
        }
        Ok(())
    }
}
