-- Of a rolling restart: whom it is for, and the operation that each VM's restart is, which tells how it ended.
alter table campaign_vms drop column generation, add column operation_id text;
