from isoloss.cli import main

main()
