//! The Flight contract over loopback: a real server, a real client, a scripted model.

mod it {
    mod contract;
    mod forms;
    mod functions;
    mod hostile;
    mod keys;
    mod outside;
    mod plain;
    mod revoked;
    mod support;
    mod trouble;
}
