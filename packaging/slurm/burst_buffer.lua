-- burst_buffer/lua of Slurm (slurm.conf: BurstBufferType=burst_buffer/lua; burst_buffer.conf: Directive=AZE): the #AZE lines of a job script are
-- checked by 'aze job --check', as its user. A script whose lines make no sense is refused when it is submitted; one whose input
-- is not there or too large, or whose results cannot be written, is held before it gets nodes (Slurm 22.05 does not tell the user's
-- number before; later versions do, and then it is refused, too). These functions run where slurmctld does, which must see the
-- paths: they open nothing and move nothing; prolog and epilog do that on the job's nodes. All functions must be there.
local AZE = os.getenv("AZE") or "aze"
local CHECK_SECONDS = 20
local NOBODY = 65534
-- The exit code of a command line that was not understood.
local USAGE = 2

local function check(job_script, uid, gid)
    local command = string.format("timeout %d setpriv --reuid %d --regid %d --clear-groups %s job --check - <'%s' 2>&1; echo $?",
        CHECK_SECONDS, uid, gid, AZE, job_script)
    local pipe = io.popen(command)
    local said = pipe:read("*a")
    pipe:close()
    local text, code = said:match("^(.-)%s*(%d+)%s*$")
    return tonumber(code) or 1, text or said
end

local function refuse(text)
    slurm.log_info("azekura: %s", text)
    return slurm.ERROR, text
end

function slurm_bb_job_process(job_script, uid, gid)
    local code, text = check(job_script, uid or NOBODY, gid or NOBODY)
    if code == USAGE or (uid and code ~= 0) then
        return refuse(text)
    end
    return slurm.SUCCESS
end

function slurm_bb_setup(job_id, uid, gid, pool, bb_size, job_script)
    local code, text = check(job_script, uid, gid)
    if code ~= 0 then
        return refuse(text)
    end
    return slurm.SUCCESS
end

function slurm_bb_pools() return slurm.SUCCESS, '{"pools":[]}' end
function slurm_bb_job_teardown() return slurm.SUCCESS end
function slurm_bb_data_in() return slurm.SUCCESS end
function slurm_bb_test_data_in() return slurm.SUCCESS end
function slurm_bb_real_size() return slurm.SUCCESS end
function slurm_bb_paths() return slurm.SUCCESS end
function slurm_bb_pre_run() return slurm.SUCCESS end
function slurm_bb_post_run() return slurm.SUCCESS end
function slurm_bb_data_out() return slurm.SUCCESS end
function slurm_bb_test_data_out() return slurm.SUCCESS end
function slurm_bb_get_status() return slurm.SUCCESS, "" end
