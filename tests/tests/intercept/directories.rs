//! Working directories and open directories: programs begin relative paths in the directory itself, whatever its path is.

use super::errors::says_the_same;

/// `find`, `rm -r`, `du` and `mkdir -p` failed with ENAMETOOLONG below 4,095 bytes of path, since each relative path was joined with that of
/// the directory.
#[test]
fn a_tree_may_be_deeper_than_the_longest_path() {
    says_the_same(
        "a_tree_may_be_deeper_than_the_longest_path",
        r"
import subprocess
def shell(text):
    ran = subprocess.run(['sh', '-c', text], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(text, ran.returncode, ran.stdout)
part = 'n' * 200
for _ in range(30):
    os.mkdir(part)
    os.chdir(part)
make('f')
print(os.stat('f').st_size, os.listdir('.'), open('f').read(), os.stat('../' + part + '/f').st_size, os.listdir('..') == [part])
os.symlink('f', 'l'); os.rename('f', 'g'); os.link('g', 'h'); os.mkdir('d'); os.rmdir('d'); os.chmod('g', 0o600)
say('access', lambda: os.access('g', os.R_OK))
say('a link that leads nowhere', lambda: os.stat('l'))
say('a path that is too long', lambda: os.stat('/'.join(['d' * 200] * 30)))
# A shell asks for the path of its working directory, which is too long: programs alone.
def programs(*lines):
    for line in lines: print(line[:40], subprocess.run(line.split(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout)
open('script', 'w').write('#!/bin/cat\na script\n'); os.chmod('script', 0o700)
programs('ls', 'cat g', 'cp g i', 'cat i', 'mkdir -p ' + '/'.join([part] * 15), 'ls', './script', 'cp /bin/echo echo', './echo a program')
fd = os.open('.', os.O_RDONLY)
os.chdir(sys.argv[1])
print(os.stat('h', dir_fd=fd).st_nlink, os.open('h', os.O_RDONLY, dir_fd=fd) > 0, sorted(os.listdir(fd)))
print(os.stat('../' + part + '/i', dir_fd=fd).st_size)
os.fchdir(fd)
print(os.path.exists('i'))
os.chdir(sys.argv[1])
shell('find . | wc; find . -type f -name g | wc; find . -depth -name i -execdir cat {} +; du -s --apparent-size . | wc -l; chmod -R u+w n*')
shell('mv n* m; find m | wc; rm -r m; ls')
",
    );
}

/// A working directory that another program had renamed was not found.
#[test]
fn a_renamed_working_directory_stays_the_working_directory() {
    says_the_same(
        "a_renamed_working_directory_stays_the_working_directory",
        r"
import subprocess
def here(): return os.path.relpath(os.getcwd(), sys.argv[1])
def shell(text): print(text, subprocess.run(['sh', '-c', text], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout)
top = os.open('.', os.O_RDONLY)
os.makedirs('a/b/c'); os.chdir('a/b/c')
make('f')
subprocess.run(['mv', sys.argv[1] + '/a', sys.argv[1] + '/x'])
print(here(), os.stat('f').st_size, os.listdir('.'), sorted(os.listdir('../..')))
make('g'); os.mkdir('d'); os.rename('g', '../g')
print(sorted(os.listdir(sys.argv[1] + '/x/b')), sorted(os.listdir(sys.argv[1] + '/x/b/c')))
shell('ls; cat f; echo new > n; cat n; cd d; ls ..; ls ../../g')
say('exec', lambda: subprocess.run(['pwd', '-P'], stdout=subprocess.PIPE, text=True).stdout.strip().endswith('/x/b/c'))
os.mkdir('deep', dir_fd=top)
os.rename(sys.argv[1] + '/x/b', sys.argv[1] + '/deep/b')
print(here(), sorted(os.listdir('../..')), sorted(os.listdir('../../..')))
pid = os.fork()
if pid == 0:
    os.rename('f', 'of a child')
    os.chdir('d')
    os.rename('../../../b', '../../../../b')
    print(here(), flush=True)
    os._exit(0)
os.waitpid(pid, 0)
print(here(), sorted(os.listdir('.')))
print(subprocess.run(['cat', 'n'], cwd='d/..', stdout=subprocess.PIPE).stdout, here())
os.fchdir(top)
print(here(), sorted(os.listdir('.')))
",
    );
}

/// A working directory that was removed stayed one by its path: the next directory of this name was taken for it.
#[test]
fn a_removed_working_directory_is_no_other_one() {
    says_the_same(
        "a_removed_working_directory_is_no_other_one",
        r"
import subprocess
top = os.open('.', os.O_RDONLY)
os.mkdir('a'); os.chdir('a')
d = os.open('.', os.O_RDONLY)
os.rmdir(sys.argv[1] + '/a')
def look(name):
    if name == 'descriptor': os.fchdir(d)
    for path in ('.', './', 'x', './x', '..', '../a'):
        say(f'{name} stat {path}', lambda: os.stat(path).st_nlink > 0)
        say(f'{name} stat of it {path}', lambda: os.stat(path, dir_fd=d).st_nlink > 0)
        say(f'{name} access {path}', lambda: os.access(path, os.F_OK))
    for path in ('x', './x'):
        say(f'{name} open', lambda: os.open(path, os.O_RDONLY))
        say(f'{name} create', lambda: os.open(path, os.O_RDWR | os.O_CREAT))
        say(f'{name} create in it', lambda: os.open(path, os.O_RDWR | os.O_CREAT, dir_fd=d))
        say(f'{name} exclusively', lambda: os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL))
        say(f'{name} mkdir', lambda: os.mkdir(path))
        say(f'{name} mkdir in it', lambda: os.mkdir(path, dir_fd=d))
        say(f'{name} symlink', lambda: os.symlink('x', path))
        say(f'{name} link', lambda: os.link(sys.argv[1] + '/u', path))
        say(f'{name} link from', lambda: os.link(path, sys.argv[1] + '/l'))
        say(f'{name} rename', lambda: os.rename(sys.argv[1] + '/u', path))
        say(f'{name} rename from', lambda: os.rename(path, sys.argv[1] + '/v'))
        say(f'{name} mkfifo', lambda: os.mkfifo(path))
        say(f'{name} unlink', lambda: os.unlink(path))
        say(f'{name} rmdir', lambda: os.rmdir(path))
        say(f'{name} truncate', lambda: os.truncate(path, 1))
        say(f'{name} chmod', lambda: os.chmod(path, 0o600))
        say(f'{name} utime', lambda: os.utime(path))
        say(f'{name} readlink', lambda: os.readlink(path))
        say(f'{name} listxattr', lambda: os.listxattr(path))
        say(f'{name} chdir', lambda: os.chdir(path))
    say(f'{name} getcwd', lambda: os.getcwd())
    say(f'{name} chdir .', lambda: os.chdir('.'))
    say(f'{name} readlink of it', lambda: os.readlink(f'/proc/self/fd/{d}').endswith('/a (deleted)'))
    say(f'{name} O_PATH', lambda: os.fstat(os.open('.', os.O_PATH)).st_nlink)
    ran = subprocess.run(['sh', '-c', 'cat x; echo x > x'], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(name, ran.stdout.count('No such file'))
look('path')
os.mkdir(sys.argv[1] + '/a'); make(sys.argv[1] + '/a/x')
look('another one')
os.unlink(sys.argv[1] + '/a/x'); os.rmdir(sys.argv[1] + '/a')
look('descriptor')
say('chdir ..', lambda: os.chdir('..'))
print(sorted(os.listdir('.')), os.path.samefile('.', sys.argv[1]))
",
    );
}
