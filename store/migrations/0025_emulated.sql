-- Whether a VM's guest is emulated, as its host told last: emulation is no wall between a guest and its host (S-16).
alter table vms add column emulated boolean;
