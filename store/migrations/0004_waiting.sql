-- What the VM waits for, in one of model.waiting's words, and since when; part of the status.
alter table vms add column waiting_for text, add column waiting_since timestamptz;
